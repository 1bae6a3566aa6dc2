"""The HTTP edge that both services share: errors, limits, request signatures, logs and metrics."""
