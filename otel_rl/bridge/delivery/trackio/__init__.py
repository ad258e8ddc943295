"""Trackio: its database on this machine, a server or a Space."""
