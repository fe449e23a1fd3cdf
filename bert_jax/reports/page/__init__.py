"""Runs on one HTML page: `write_report` of page.py."""
