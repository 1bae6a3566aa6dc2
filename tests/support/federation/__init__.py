"""A federation of real processes, and everything that tests need to run studies in it."""
