"""What a model of several languages carries over from one to another."""
