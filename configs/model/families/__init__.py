"""The families of encoders: a file each, which configs/model/model_config.py lists."""
