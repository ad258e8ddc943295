"""Lines that a command keeps up to date on a terminal."""
