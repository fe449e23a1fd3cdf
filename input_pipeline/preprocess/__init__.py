"""The offline job: its stages, the engines that run them, and its folder."""
