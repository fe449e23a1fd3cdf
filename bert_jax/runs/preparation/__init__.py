"""What comes before a run and is made once: a vocabulary, records of another program."""
