"""Files that any program of the house reads and writes: whole ones, and objects of JSON."""
