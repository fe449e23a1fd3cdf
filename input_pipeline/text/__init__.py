"""Files of many forms as documents, sentences, and rows of tables."""
