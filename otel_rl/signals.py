"""Signals of OTLP, as both ends of a connection name them."""

from enum import StrEnum


class Signal(StrEnum):
    """OTLP signals that the bridge accepts."""

    METRICS = "metrics"
    TRACES = "traces"
    LOGS = "logs"
