"""Examples on disk, and batches of them."""
