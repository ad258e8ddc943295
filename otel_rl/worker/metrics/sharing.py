"""Shares metrics with a MeterProvider that the program sets after otel_rl's is the global one."""

import logging
from typing import Final

from opentelemetry import metrics

from otel_rl.worker.later_providers import take_later
from otel_rl.worker.metrics.provider import BufferedMeterProvider

__all__ = ["share_with_later"]

_log: Final = logging.getLogger("otel_rl")


def share_with_later(own: BufferedMeterProvider) -> None:
    """Make ``metrics.set_meter_provider`` show the instruments of ``own``. Idempotent."""

    def share(provider: object) -> bool:
        from opentelemetry.sdk.metrics import MeterProvider  # 3 MB that few workers need

        if not isinstance(provider, MeterProvider):
            return False
        own.share_with(provider)
        _log.info("The program's MeterProvider gets the metrics, too.")
        return True

    take_later(metrics, "meter", own, share)
