"""Replays of kept runs, for ``otel-rl replay``: where rows come from, and many runs at a time."""
