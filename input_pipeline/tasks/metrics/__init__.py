"""Metrics of predictions, with the figures of the official scorers."""
