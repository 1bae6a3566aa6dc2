"""An owner's records: readers of every format, matched to a study's features."""
