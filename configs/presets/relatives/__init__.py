"""BERT's relatives.

EELBERT (Cohn et al. 2023) and RETVec (Bursztein et al. 2023), whose vectors are computed from
spelling and from characters, RoBERTa (Liu et al. 2019) and ALBERT (Lan et al. 2020).
"""
