"""``GET /healthz``, answered without the framework: importing that takes 0.2 s of CPU."""

from starlette.responses import Response

from otel_rl.bridge.ingest.pipeline import IngestPipeline

__all__ = ["HEALTH_PATH", "Health"]

HEALTH_PATH = "/healthz"


class Health:
    """Answers 200, or 503 with the problem of the bridge.

    Args:
        intake: Knows the problem.
    """

    def __init__(self, intake: IngestPipeline) -> None:
        self._intake = intake

    async def answer(self) -> Response:
        """Return the answer to a probe."""
        problem = self._intake.problem()
        status = 503 if problem else 200
        return Response(f"{problem or 'ok'}\n", status, media_type="text/plain")
