"""Forms of text whose records have a column that holds a document, one form a file."""
