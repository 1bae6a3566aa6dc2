"""A whole study between processes on this machine."""
