"""What the launchers of clusters share."""
