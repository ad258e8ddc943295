"""Adapters from RL frameworks to a worker, one per file; docs/how-to/frameworks.md lists them."""
