"""What a study costs for up to ten million owners: a model made of measured unit costs, and its check."""
