"""What a user can set about rows."""

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["AlignSettings"]


class AlignSettings(BaseModel):
    """How samples become rows."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False
    )

    window_s: float = Field(default=5.0, gt=0, le=3600)
    """Length of the event-time windows of time-driven metrics (rates, quantiles, levels). Text
    samples wait as long for others of their step."""

    allowed_lateness_s: float = Field(default=15.0, gt=0, le=86400)
    """How long an incomplete step or window waits after its newest sample. What comes later is
    written too, as a row of its own, and counted."""

    lease_s: float = Field(default=15.0, gt=0, le=86400)
    """A worker that has not exported for this long no longer holds steps open. One that has not
    said goodbye and does not export much less often has failed then."""

    forget_s: float = Field(default=3600.0, gt=0)
    """A worker that has not exported for this long is forgotten, with its series, so that restarts
    do not fill the memory. What it has counted stays in the totals, and is not counted again if it
    comes back."""

    settle_s: float = Field(default=0.25, ge=0, le=60)
    """A worker has settled a step once it exported again this long after it went past it. Some SDKs
    collect one instrument after another, so a single export can hold half a step."""

    quiet_s: float = Field(default=1.0, ge=0, le=3600)
    """The newest step is closed when it has everything that the step before had, and nothing came
    for this long. So the rows of a run whose steps take minutes are not minutes late."""

    per_worker: bool = False
    """Write every worker's own series too, with every single measurement, under
    ``workers/<role>/<index>/...``."""

    max_series: int = Field(default=10_000, gt=0)
    """Series per experiment. Close to it, workers whose lease has ended are forgotten; points of
    further series are dropped and counted. It also bounds the workers that are waited for."""

    max_keys: int = Field(default=20_000, gt=0)
    """Tracker keys per experiment, over its whole life: those of dead workers stay in the run.
    Points that would need another one are dropped and counted."""

    max_remembered: int = Field(default=4_000_000, gt=0)
    """Points per experiment that are remembered one by one, to know them when they come again, at
    16 bytes each. Only points of other senders than otel_rl's own need it. Beyond it the older half
    is forgotten, and points as old as that are dropped and counted."""

    max_worker_series: int = Field(default=2_000, ge=0)
    """Per-worker series per experiment. Further ones are only in the role's value."""

    max_devices: int = Field(default=128, ge=0)
    """GPUs per experiment that have keys of their own, ``gpu/<host>/<device>/...``. Further ones
    are only in the values of their roles and of all."""

    max_open_steps: int = Field(default=10_000, gt=0)
    """Steps of a role that wait for workers. The oldest are closed beyond that. Of the steps that
    wait to be explained, the oldest are not explained beyond that."""

    spans_wait_s: float = Field(default=10.0, ge=0, le=3600)
    """How long the spans of a step are waited for before it is explained, from its own on."""

    spans_horizon_s: float = Field(default=60.0, ge=0, le=86400)
    """How long before a step work may have ended that explains it."""

    trace_url: str = ""
    """Where a person sees a trace, with ``{trace_id}`` in it, e.g.
    ``http://localhost:16686/trace/{trace_id}``. It stands in the row that explains a step."""

    max_spans: int = Field(default=100_000, gt=0)
    """Spans per experiment that are kept to explain steps. The oldest make room; they are counted.
    """

    max_spans_bytes: int = Field(default=128 << 20, ge=1 << 10)
    """Memory for those spans, per experiment. One takes about 700 bytes, and 70 more for each link.
    The oldest make room; they are counted."""

    max_open_windows: int = Field(default=1_000, gt=0)
    """Windows that wait for workers, per experiment. The oldest are closed beyond that."""

    max_history_bytes: int = Field(default=64 << 20, ge=0)
    """Of what ``otel-rl diagnose`` goes by, per experiment, compressed, in the journal. The oldest
    makes room. 0 keeps nothing."""
