"""Documents to examples: pairs, rows, masks, packing."""
