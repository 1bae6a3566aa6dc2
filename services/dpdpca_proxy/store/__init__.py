"""What the proxy keeps: rows in one database, ciphertexts in files beside it."""
