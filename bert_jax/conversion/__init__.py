"""Others' files and names for the same parameters, both ways: one module for each format."""
