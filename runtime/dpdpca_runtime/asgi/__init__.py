"""The HTTP edge of both services: errors, limits, request signatures, logs and metrics."""
