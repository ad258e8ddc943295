"""Delivery of one run: its thread, its requests, and its openings in the tracker."""
