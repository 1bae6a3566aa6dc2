"""The service's database: one row for each study, and the chunks of its release."""
