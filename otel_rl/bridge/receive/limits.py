"""Bounds of the receive stage: settings that people set, and bounds that hold for all bridges."""

from typing import Self

from pydantic import Field

from otel_rl.setting_types import Seconds, Section, Size

MAX_HEAD_BYTES = 16 << 10
"""Most bytes of a request before its body, and of a gRPC call's metadata."""

_BODIES = 16
"""Largest bodies that are held at once."""


class ReceiveSettings(Section):
    """Bounds on one request and on all requests together, as people set them.

    Each refusal is answered with its reason, and counted.
    """

    # Exporters send at most 4 MiB, gRPC's default.
    max_body_bytes: Size = Field(16 << 20, ge=1 << 10)
    """Size of the largest request, decompressed. Of all requests together, 16 times as much is
    held."""

    max_connections: int = Field(1024, ge=1)
    """Most connections for each of the two protocols."""

    default_experiment: str | None = Field(None, min_length=1)
    """Experiment of data that names none. Unset: such data is refused."""


class ReceiveLimits(ReceiveSettings):
    """The settings of ``ReceiveSettings``, with the bounds that hold for all bridges."""

    # At least twice the largest body: one that compresses badly is held twice while it is read.
    max_in_flight_bytes: Size = Field(_BODIES * (16 << 20), ge=1 << 10)
    """Bodies held at once."""

    # Far more than one bridge writes at once: a bound on what a sender makes up.
    max_experiments: int = Field(1000, ge=1)
    """Runs (experiment and trial) in use at once."""

    # A body of 16 MiB at 13 Mbit/s; exporters themselves give up after ten seconds.
    body_timeout_s: Seconds = Field(10.0, gt=0)
    """Time for a body or gRPC message."""

    # Shorter than an ended run stays, so that no repetition outlives what is known of its run.
    max_age_s: Seconds = Field(14 * 86_400.0, gt=0)
    """Oldest event time."""

    # A clock that is further ahead is set wrongly, and would order the rows by its error.
    max_future_s: Seconds = Field(600.0, ge=0)
    """Furthest event time ahead."""

    # Two bytes can encode a message, and parsing one takes up to 200 bytes.
    max_messages_per_request: int = Field(1_000_000, ge=1)
    """Protobuf messages; twice as many strings, half as many JSON objects."""

    max_points_per_request: int = Field(200_000, ge=1)
    """Points, spans or log records; resources, scopes and metrics together."""

    # Threads share the interpreter: more make none faster, but each sender waits for fewer others.
    max_concurrent_requests: int = Field(64, ge=1, le=1024)
    """Requests that are read at once, beside those read on arrival; gRPC calls likewise."""

    header_timeout_s: Seconds = Field(10.0, gt=0)
    """Time for HTTP headers."""

    answer_timeout_s: Seconds = Field(10.0, gt=0)
    """Time that a sender has to read the answer."""

    # Above the export interval of every SDK.
    idle_timeout_s: Seconds = Field(75.0, gt=0)
    """Time until an idle connection is closed."""

    retry_after_s: int = Field(1, ge=1)
    """``Retry-After``; above three, exporters give up."""

    max_resource_attributes: int = Field(128, ge=1)
    """Attributes of a resource."""

    max_attributes: int = Field(64, ge=1)
    """Of a scope, point, exemplar or event; fields of a sample."""

    # The limit of OpenTelemetry SDKs.
    max_span_attributes: int = Field(128, ge=1)
    """Attributes of a span."""

    max_span_bytes: Size = Field(1 << 20, ge=1 << 10)
    """Protobuf bytes of a span."""

    # SDKs send at most 128, workers of otel_rl 64.
    max_span_links: int = Field(1024, ge=1)
    """Links of a span."""

    max_span_name_bytes: Size = Field(1024, ge=1)
    """UTF-8 bytes of a span name."""

    max_attribute_key_bytes: Size = Field(256, ge=1)
    """UTF-8 bytes of an attribute or event key."""

    max_attribute_value_bytes: Size = Field(4096, ge=1)
    """Protobuf bytes of a value, not of spans; of a scope's name and version."""

    max_resource_bytes: Size = Field(32 << 10, ge=1)
    """Protobuf bytes of a resource."""

    max_attributes_bytes: Size = Field(8 << 10, ge=1)
    """Protobuf bytes of a scope's, point's or exemplar's attributes."""

    max_event_bytes: Size = Field(1 << 20, ge=1 << 10)
    """Protobuf bytes of a log event."""

    # Workers of otel_rl cut texts at 16,384 characters.
    max_event_text_bytes: Size = Field(128 << 10, ge=1)
    """UTF-8 bytes of a text in a log event."""

    # Protobuf's own limit is 30.
    max_event_depth: int = Field(16, ge=1, le=25)
    """Nesting in a log event."""

    max_name_chars: int = Field(128, ge=1)
    """Characters of a name (experiment, role, phase, table, tag, ...)."""

    # OpenTelemetry's limit.
    max_metric_name_bytes: Size = Field(255, ge=1)
    """UTF-8 bytes of a metric name or unit."""

    max_buckets: int = Field(512, ge=1)
    """Buckets or quantiles of a point."""

    # Workers of otel_rl send at most 1,024.
    max_exemplars: int = Field(4096, ge=1)
    """Exemplars of a data point."""

    @classmethod
    def of(cls, settings: ReceiveSettings) -> Self:
        return cls(**settings.model_dump(), max_in_flight_bytes=_BODIES * settings.max_body_bytes)


def is_over(text: str, max_bytes: int) -> bool:
    """Return whether a text is over ``max_bytes`` in UTF-8 (one to four bytes a character)."""
    return len(text) * 4 > max_bytes and (len(text) > max_bytes or len(text.encode()) > max_bytes)
