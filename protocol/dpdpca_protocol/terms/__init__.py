"""The agreed terms of a study: features, parties, the manifest, its figures and its rules."""
