"""The proxy's storage: rows in one database, and ciphertexts in files."""
