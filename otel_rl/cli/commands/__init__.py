"""Subcommands of ``otel-rl``, one file each."""
