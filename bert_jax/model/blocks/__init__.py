"""The parts of which an encoder's blocks are composed."""
