"""The three simulated systems, and what they are made of."""
