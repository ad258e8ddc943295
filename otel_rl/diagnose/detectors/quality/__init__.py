"""Detectors of training that goes on as if nothing was wrong, towards the wrong aim."""
