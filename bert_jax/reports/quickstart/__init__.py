"""What only the quickstart uses."""
