"""Adapters from RL frameworks to a worker, one file each. docs/integrations.md has the table."""
