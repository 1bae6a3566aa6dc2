"""Routes: parse, call, answer. No rule lives here."""
