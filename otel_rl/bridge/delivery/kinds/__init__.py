"""Shared by the kinds of trackers: options, checks, and kinds of other packages."""
