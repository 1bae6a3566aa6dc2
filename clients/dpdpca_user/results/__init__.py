"""After a study: the model, its report, and how far to trust it."""
