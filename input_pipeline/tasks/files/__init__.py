"""Examples as they lie in files: the SQuAD format, column files and CoNLL-U."""
