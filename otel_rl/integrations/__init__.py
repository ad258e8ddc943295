"""Adapters from RL frameworks to a worker, one a file. docs/how-to/frameworks.md has the table."""
