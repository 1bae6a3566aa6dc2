"""What comes before a study: drafts, forecasts of the noise, pre-studies, and choices based on them."""
