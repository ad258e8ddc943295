"""What the receive stage takes, and how much of it, as one frozen settings model."""

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = ["MAX_HEAD_BYTES", "ReceiveLimits"]

MAX_HEAD_BYTES = 16 << 10
"""Most bytes of a request before its body, and of a gRPC call's metadata."""


class ReceiveLimits(BaseModel):
    """Bounds on one request and on all requests together.

    A request over a bound is answered, never half taken: the sender learns what was refused and
    why, and the bridge counts it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    max_body_bytes: int = Field(64 << 20, ge=1 << 10)
    """Largest request, counted after decompression. The default is what OTLP recommends."""

    max_messages_per_request: int = Field(1_000_000, ge=1)
    """Most protobuf messages in one request, empty ones too, and twice as many strings; in JSON, a
    quarter as many objects. Two bytes can make a message, and each costs up to 200 bytes of memory
    while it is looked at, so a bound on bytes alone lets 64 MiB become 6 GiB."""

    max_points_per_request: int = Field(200_000, ge=1)
    """Most data points, spans or log records in one request, and most resources, scopes and metrics
    together, empty ones too. A collector's batches have 8,192. A sender that is told so sends less
    with ``max_export_batch_size`` (SDKs) or ``send_batch_max_size`` (Collector)."""

    max_parsing_bytes: int = Field(512 << 20, ge=1 << 20)
    """Most memory for all requests that are parsed at the same time, whatever the number of cores.
    Three quarters of it are for large requests, of which one is parsed at a time; none of the
    others waits for it."""

    max_in_flight_bytes: int = Field(256 << 20, ge=1 << 10)
    """Most bytes of request bodies held at once, as they came and decompressed, over HTTP and gRPC
    together. Above it, 503 and UNAVAILABLE."""

    max_concurrent_requests: int = Field(64, ge=1, le=1024)
    """Threads that store requests, per protocol. Requests that wait for the disk at the same time
    share one fsync, so this is far more than the number of cores."""

    max_connections: int = Field(1024, ge=1)
    """Most connections at once, per protocol. A further one gets 503 and is closed; over gRPC and
    within TLS it is only closed."""

    max_experiments: int = Field(1000, ge=1)
    """Most runs (experiment and trial) that the bridge keeps. Data of further ones is refused by
    partial success."""

    header_timeout_s: float = Field(10.0, gt=0)
    """Longest time for a sender to deliver the headers of an HTTP request."""

    body_timeout_s: float = Field(10.0, gt=0)
    """Longest time for a sender to deliver the body of a request, or the message of a call."""

    answer_timeout_s: float = Field(10.0, gt=0)
    """Longest time for a sender that leaves its answers lying to take them."""

    idle_timeout_s: float = Field(75.0, gt=0)
    """A connection without requests is closed after this. Above the export interval of every SDK,
    so that exporters keep theirs."""

    retry_after_s: int = Field(1, ge=1)
    """How long a sender is asked to wait after 503. Exporters give up after ten seconds in all, so
    more than three loses data."""

    max_resource_attributes: int = Field(128, ge=1)
    """Most attributes of a resource."""

    max_attributes: int = Field(64, ge=1)
    """Most attributes of a scope, a data point, an exemplar or a log event, and most fields of a
    text sample."""

    max_span_attributes: int = Field(128, ge=1)
    """Most attributes of a span. The default is the limit of OpenTelemetry SDKs."""

    max_span_bytes: int = Field(1 << 20, ge=1 << 10)
    """Largest span, as protobuf, with its attributes, events and links."""

    max_span_links: int = Field(1024, ge=1)
    """Most links of a span. SDKs send at most 128, workers of otel_rl 64."""

    max_span_name_bytes: int = Field(1024, ge=1)
    """Longest name of a span, in UTF-8."""

    max_attribute_key_bytes: int = Field(256, ge=1)
    """Longest attribute key, in UTF-8, and longest key within a log event."""

    max_attribute_value_bytes: int = Field(4096, ge=1)
    """Longest attribute value of a resource, scope, point or exemplar, as protobuf, and name or
    version of a scope. Attributes of spans are not held to it: a stack trace is long."""

    max_resource_bytes: int = Field(32 << 10, ge=1)
    """Most bytes of a resource's attributes together, as protobuf."""

    max_attributes_bytes: int = Field(8 << 10, ge=1)
    """Most bytes of the attributes of a scope, data point or exemplar together, as protobuf. Those
    of a point are kept for as long as its series is known."""

    max_event_bytes: int = Field(1 << 20, ge=1 << 10)
    """Largest log event, as protobuf. Whatever it says stands in the run, or is lost with it."""

    max_event_text_bytes: int = Field(128 << 10, ge=1)
    """Longest text in a log event, in UTF-8. Workers of otel_rl cut what is over 16,384
    characters."""

    max_event_depth: int = Field(16, ge=1, le=25)
    """Most maps and arrays within each other in a log event. Protobuf itself ends at 30."""

    max_name_chars: int = Field(128, ge=1)
    """Longest experiment, trial or role, longest phase of a span, and longest table, tag, group or
    job type of an event."""

    max_metric_name_bytes: int = Field(255, ge=1)
    """Longest metric name or unit, in UTF-8. The default is OpenTelemetry's own limit of names."""

    max_buckets: int = Field(512, ge=1)
    """Most buckets of a histogram point, or quantiles of a summary point."""

    max_exemplars: int = Field(4096, ge=1)
    """Most exemplars of a data point. Workers of otel_rl send at most 1,024 in one."""

    max_age_s: float = Field(14 * 86_400.0, gt=0)
    """How far back an event may lie."""

    max_future_s: float = Field(600.0, ge=0)
    """How far a sender's clock may be ahead of the bridge's."""

    default_experiment: str | None = Field(None, min_length=1)
    """Where data without ``rl.experiment.name`` goes. None refuses it."""

    @model_validator(mode="after")
    def _one_request_fits(self) -> Self:
        # A body that compresses badly is there twice while it is decompressed.
        if self.max_in_flight_bytes < 2 * self.max_body_bytes:
            msg = (
                f"max_in_flight_bytes ({self.max_in_flight_bytes}) must be at least twice "
                f"max_body_bytes ({self.max_body_bytes}), or the largest request never fits."
            )
            raise ValueError(msg)
        return self
