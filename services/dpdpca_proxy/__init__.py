"""The proxy: gathers sealed ciphertexts, closes studies, adds the noise, and releases once."""
