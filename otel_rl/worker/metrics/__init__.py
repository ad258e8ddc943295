"""Meter provider of a worker: keeps every measurement of a gauge."""
