"""An owner's records: reads every supported format and matches columns to a study's features."""
