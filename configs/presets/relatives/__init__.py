"""BERT's relatives: EELBERT (Cohn et al. 2023) and Bursztein et al. 2023, whose word vectors are
computed from spelling and from characters, RoBERTa (Liu et al. 2019) and ALBERT (Lan et al.
2020).
"""
