"""What the pre-training commands share."""
