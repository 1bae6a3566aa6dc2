"""Where each value is stored: in a slot of a packed integer, in a block of a vector."""
