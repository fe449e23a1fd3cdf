"""RETVec: encoders of whole words, and how their network is trained."""
