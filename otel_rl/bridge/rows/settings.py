"""Settings of the stage that makes rows."""

from typing import Final

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["AlignSettings"]


_ROWS_OF_WANDB: Final = 1000
"""Rows of a run in a minute that W&B advises."""


class AlignSettings(BaseModel):
    """Rules that make rows of samples."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False
    )

    window_s: float = Field(default=5.0, gt=0, le=3600)
    """Event-time window of metrics without a step (rates, quantiles, levels). Text samples wait as
    long for others of their step."""

    allowed_lateness_s: float = Field(default=15.0, gt=0, le=86400)
    """Time an incomplete step or window waits after its newest sample. Later samples make a row of
    their own and are counted."""

    lease_s: float = Field(default=15.0, gt=0, le=86400)
    """Worker timeout: a worker without an export for this long no longer holds steps open, and has
    failed unless it reported its exit or exports much less often."""

    forget_s: float = Field(default=3600.0, gt=0)
    """A worker without an export for this long is removed from memory with its series. Its counts
    stay in the totals and are not added again if it returns."""

    # Some SDKs collect one instrument after another.
    settle_s: float = Field(default=0.25, ge=0, le=60)
    """A step of a worker is settled by an export this long after the worker left the step."""

    quiet_s: float = Field(default=1.0, ge=0, le=3600)
    """The newest step closes after this long without a sample, once it has everything that the step
    before had."""

    max_rows_per_minute: int | None = Field(default=None, ge=0)
    """Rows of a run in a minute of its time. Beyond it only every second step has rows, then every
    fourth, and so on; counted as `otel_rl.bridge.values.folded`. The archive has all. Unset: 1000
    with W&B, by its guidance, else no bound. 0 for no bound."""

    per_worker: bool = False
    """Also write each worker's own series, every measurement, under
    ``workers/<role>/<index>/...``."""

    max_series: int = Field(default=10_000, gt=0)
    """Series per experiment. Near the bound, timed-out workers are forgotten; points of further
    series are dropped and counted. Also bounds the workers that rows wait for."""

    max_keys: int = Field(default=20_000, gt=0)
    """Tracker keys per experiment, over its whole life. Points that need another one are dropped
    and counted."""

    max_remembered: int = Field(default=4_000_000, gt=0)
    """Points per experiment remembered for deduplication, 16 bytes each, of senders other than
    otel_rl. Above it the older half is forgotten, and points as old are dropped and counted."""

    max_worker_series: int = Field(default=2_000, ge=0)
    """Per-worker series per experiment. Further ones are only in the role's value."""

    max_devices: int = Field(default=128, ge=0)
    """GPUs per experiment with keys of their own, ``gpu/<host>/<device>/...``, and as many hosts.
    Further ones are only in the values of roles and of all."""

    max_open_steps: int = Field(default=10_000, gt=0)
    """Steps of a role that wait for workers; above it the oldest close. Also bounds the steps that
    wait for their analysis."""

    spans_wait_s: float = Field(default=10.0, ge=0, le=3600)
    """Time a step waits for its spans before it is analysed."""

    spans_horizon_s: float = Field(default=60.0, ge=0, le=86400)
    """Spans that ended at most this long before a step take part in its analysis."""

    trace_url: str = ""
    """URL of a trace, e.g. ``http://localhost:16686/trace/{trace_id}``, written into the row with
    the step's analysis, and into tables of samples."""

    max_spans: int = Field(default=100_000, gt=0)
    """Spans per experiment kept for step analysis; the oldest are dropped and counted."""

    max_spans_bytes: int = Field(default=128 << 20, ge=1 << 10)
    """Memory for those spans, per experiment: about 700 bytes a span and 70 a link. The oldest are
    dropped and counted."""

    max_open_windows: int = Field(default=1_000, gt=0)
    """Windows per experiment that wait for workers; above it the oldest close."""

    max_history_bytes: int = Field(default=64 << 20, ge=0)
    """Compressed history for ``otel-rl diagnose`` in the journal, per experiment; the oldest is
    dropped. 0 keeps none."""

    def for_tracker(self, name: str) -> "AlignSettings":
        """Return the settings with the defaults for a tracker."""
        if name != "wandb" or self.max_rows_per_minute is not None:
            return self
        return self.model_copy(update={"max_rows_per_minute": _ROWS_OF_WANDB})

    @property
    def most_rows(self) -> int:
        """Return the rows in a minute; 0 for no bound."""
        return self.max_rows_per_minute or 0
