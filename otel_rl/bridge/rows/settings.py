"""Settings and bounds of the stage that makes rows."""

from typing import Final, Self

from pydantic import Field

from otel_rl.setting_types import Seconds, Section, Size

_WRITTEN_SHARE: Final = 64
"""A journal has room for the written steps of so many roles, at the least."""


class RowSettings(Section):
    """Settings of the rules that turn samples into rows."""

    window_s: Seconds = Field(default=5.0, gt=0, le=3600)
    """Length of the windows of measurements without a step."""

    start_wait_s: Seconds = Field(default=5.0, ge=0, le=3600)
    """Time that a role's first row waits for another worker after the last one came. In all it
    waits at most 6 times as long, and 12 times for workers that were announced."""

    wait_s: Seconds = Field(default=15.0, gt=0, le=86400)
    """Time that an incomplete step or window waits after its newest sample."""

    worker_timeout_s: Seconds = Field(default=15.0, gt=0, le=86400)
    """Time without an export until a worker counts as gone."""

    per_worker: bool = False
    """Whether each worker's own series are written, too."""

    max_series: int = Field(default=10_000, gt=0)
    """Series of an experiment, and workers that rows wait for. There may be twice as many tracker
    keys."""

    spans_horizon_s: Seconds = Field(default=60.0, ge=0, le=86400)
    """Age up to which spans are kept for the analysis of steps."""

    trace_url: str = ""
    """URL under which a trace is shown: ``http://localhost:16686/trace/{trace_id}``."""


class AlignSettings(RowSettings):
    """The settings of ``RowSettings``, with the bounds on memory that hold for all bridges."""

    max_keys: int = Field(default=20_000, gt=0)
    """Tracker keys per experiment."""

    # Nobody reads as many charts of one metric; an attribute that has more values is an id.
    max_metric_keys: int = Field(default=1_000, gt=0)
    """Tracker keys of one metric of a role."""

    forget_s: Seconds = Field(default=3600.0, gt=0)
    """Time without an export until a worker leaves memory."""

    max_devices: int = Field(default=128, ge=0)
    """GPUs and hosts with own keys."""

    spans_wait_s: Seconds = Field(default=10.0, ge=0, le=3600)
    """Time that a step waits for its spans."""

    max_history_bytes: Size = Field(default=64 << 20, ge=0)
    """Compressed history per experiment. 0: none."""

    max_rollout_bytes: Size = Field(default=256 << 20, ge=0)
    """Finished rollouts per experiment that the page finds, compressed. 0: none."""

    max_remembered: int = Field(default=4_000_000, gt=0)
    """Points per experiment for deduplication, 16 bytes each."""

    max_worker_series: int = Field(default=2_000, ge=0)
    """Per-worker series per experiment."""

    max_open_steps: int = Field(default=10_000, gt=0)
    """Open steps of a role."""

    max_written_bytes: Size = Field(default=16 << 20, ge=0)
    """Steps of a role that have a row and that late samples still join, encoded; at most a 64th of
    ``journal.max_bytes``."""

    max_spans: int = Field(default=100_000, gt=0)
    """Spans per experiment kept for analysis."""

    max_spans_bytes: Size = Field(default=128 << 20, ge=1 << 10)
    """Memory of these spans: 700 bytes a span, 70 a link."""

    max_open_windows: int = Field(default=1_000, gt=0)
    """Open windows per experiment."""

    @classmethod
    def of(cls, settings: RowSettings, journal_bytes: int = 1 << 62) -> Self:
        """Return the settings for a bridge with a journal of ``journal_bytes``.

        Written steps stay in the journal as long as their run goes on, and must never fill it.
        """
        rules = cls(**settings.model_dump())
        most = min(rules.max_written_bytes, journal_bytes // _WRITTEN_SHARE)
        return rules.model_copy(
            update={"max_written_bytes": most, "max_keys": 2 * settings.max_series}
        )
