"""What vectors of whole texts are worth: retrieval, similarity, pairs, translations."""
