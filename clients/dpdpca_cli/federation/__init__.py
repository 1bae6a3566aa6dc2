"""A federation of processes on this machine, for the demo, the benchmark and the tests."""
