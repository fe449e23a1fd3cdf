"""Tasks to fine-tune on: read examples, make features, decode model outputs, score."""
