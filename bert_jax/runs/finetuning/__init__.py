"""What the fine-tuning and evaluation commands share."""
