"""Directories of other models' tokenizers: RoBERTa's byte-level BPE, ALBERT's unigram pieces."""
