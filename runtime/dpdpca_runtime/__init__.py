"""What every role stands on outside the protocol: files, locks, keys at rest, worker processes, HTTP."""
