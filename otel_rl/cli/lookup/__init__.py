"""Find the run that a command is asked for, in the journals that there are."""
