"""Where a value lies: slots of a packed integer, blocks of a vector."""
