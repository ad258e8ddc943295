"""Tracer provider of a worker: samples whole steps and buffers ended spans."""
