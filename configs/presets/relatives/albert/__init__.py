"""ALBERT (Lan et al. 2020): a narrow word table, and one block's weights for all blocks."""
