"""What training minimises: a file for each loss."""
