"""What keeps a run alive, and what ends it: signals, the watchdog, restarts."""
