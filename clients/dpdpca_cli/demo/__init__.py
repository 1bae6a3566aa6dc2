"""The demo: a whole study between processes on this machine."""
