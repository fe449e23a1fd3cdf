"""Kinds of vocabularies, a class each: how text becomes their entries."""
