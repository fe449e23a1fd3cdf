"""The families of encoders: a file each, which registry.py lists."""
