"""The service's SQLite file: one row a study, and the chunks of its release."""
