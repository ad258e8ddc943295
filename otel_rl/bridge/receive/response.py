"""The answer to a request that was taken, in whole or in part."""

from otel_rl.bridge.receive.admit import Admitted
from otel_rl.bridge.receive.signals import SIGNALS, ExportResponse
from otel_rl.records import Signal

__all__ = ["export_response"]


def export_response(signal: Signal, admitted: Admitted) -> ExportResponse:
    """Says what was refused; ``partial_success`` stays unset where everything was taken.

    Where only exemplars were refused, no point was: then the message is a warning, which OTLP
    expresses as a count of 0 with a message. What was dropped of earlier requests counts here.
    """
    spec = SIGNALS[signal]
    response = spec.response()
    if admitted.message:
        response.partial_success.error_message = admitted.message
        rejected = sum(admitted.refused.values()) + admitted.dropped_earlier
        setattr(response.partial_success, spec.rejected, rejected)
    return response
