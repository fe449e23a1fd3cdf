"""What of a corpus is read: files found, told by what they are, and divided into units."""
