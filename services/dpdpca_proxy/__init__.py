"""The proxy: it collects sealed ciphertexts, closes studies, adds the noise, and makes one release."""
