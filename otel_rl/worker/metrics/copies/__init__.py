"""Copies of the instruments for metric readers and providers of the program."""
