"""Diagnosis of live runs, and of traces read back from Jaeger."""
