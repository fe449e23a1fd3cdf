"""Parameter-efficient tuning: a file for each method, and the registry of them."""
