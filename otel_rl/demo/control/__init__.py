"""Control connections of the demo: processes start, join the run and exchange messages."""
