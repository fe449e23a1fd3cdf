"""Devices and processes: where arrays live, and how several processes are one run."""
