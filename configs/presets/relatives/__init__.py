"""BERT's relatives: EELBERT (Cohn et al. 2023), whose word vectors are computed from the pieces'
spelling, and RoBERTa (Liu et al. 2019).
"""
