"""A trained model that answers."""
