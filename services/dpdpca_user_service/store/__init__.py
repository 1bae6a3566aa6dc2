"""The service's SQLite file: one row for each study, and the chunks of its release."""
