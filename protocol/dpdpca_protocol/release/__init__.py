"""From encrypted shares to the one noisy release."""
