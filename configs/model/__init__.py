"""The settings of a model, of its families, and of what of it is learnt."""
