"""Diagnosis of live runs."""
