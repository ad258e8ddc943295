"""Runs for programs that ask by the Model Context Protocol, such as agents. Reads only."""
