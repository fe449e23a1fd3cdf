"""What a run is: typed, checked configuration. Standard library only."""
