"""A run's folder: what lies in it, who may write there, and models read from it."""
