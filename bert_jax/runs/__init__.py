"""What carries out a run: its folder, where its weights come from, pre-training, fine-tuning."""
