"""Span analysis: the critical path, idle time, slack, clock offsets."""
