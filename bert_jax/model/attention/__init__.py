"""Attention: what it computes, what can compute it, and the kernel of our own."""
