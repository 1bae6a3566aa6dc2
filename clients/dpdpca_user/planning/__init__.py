"""Before a study: drafts, forecasts of the noise, pre-studies and what they choose."""
