"""The command line of a data owner."""
