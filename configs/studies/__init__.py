"""Studies: comparisons of the paper, and what a study is."""
