"""The command line of a data user."""
