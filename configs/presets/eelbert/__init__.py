"""EELBERT (Cohn et al. 2023): BERTs whose word vectors are computed from the pieces' spelling."""
