"""Trained models to start from: read from wherever they lie, and made to fit a run."""
