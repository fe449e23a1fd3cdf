"""The configurations that this package ships: a file for each family, `PRESETS` has them all."""
