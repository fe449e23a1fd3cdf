"""The configurations that this package ships: a file for each family, listed in configs/load.py."""
