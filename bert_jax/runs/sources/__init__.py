"""Trained models to start from: read from wherever they lie, and made to fit what is asked of
them.
"""
