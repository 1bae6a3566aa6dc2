"""Routes: they parse a request, call an operation and send the answer. They contain no rules."""
