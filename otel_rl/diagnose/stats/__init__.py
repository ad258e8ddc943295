"""Statistics: detection of level changes and trends in series."""
