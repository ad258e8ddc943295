"""Builds the answer to a request that was accepted, in whole or in part."""

from otel_rl.bridge.ingest.signal_specs import SIGNALS, ExportResponse
from otel_rl.bridge.ingest.validation.validate import Validated
from otel_rl.signals import Signal

__all__ = ["export_response"]


def export_response(signal: Signal, admitted: Validated) -> ExportResponse:
    """Build the response; ``partial_success`` stays unset where everything was accepted.

    Refused exemplars of accepted points are a warning, which OTLP expresses as a count of 0 with a
    message. Points of earlier requests that were dropped later count here.
    """
    spec = SIGNALS[signal]
    response = spec.response()
    if admitted.message:
        response.partial_success.error_message = admitted.message
        rejected = sum(admitted.refused.values()) + admitted.dropped_earlier
        setattr(response.partial_success, spec.rejected, rejected)
    return response
