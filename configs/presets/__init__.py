"""The configurations that this package ships, one a file: `get_config()`."""
