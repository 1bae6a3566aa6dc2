"""Results of the releases for many features: sketch, lift and scores."""
