"""What comes after a study: the model, its report, and how reliable it is."""
