"""Adapters around the real W&B client."""
