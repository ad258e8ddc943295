"""The Weights & Biases tracker: online, offline, and shared with a run of the user's own."""
