"""Metrics of the demo's processes, through plain OpenTelemetry instruments."""
