"""Detectors of what a run uses and does not make: tools, data, hosts, links, shares of work."""
