"""What is computed: the encoder, the heads on it, and their parts."""
