"""The bridge's real intake under a simulated clock: validation, decoding, rows, history."""

from collections.abc import Iterable

from exams.first.requests import Arrived
from otel_rl.bridge.otlp.decode import decode_parts
from otel_rl.bridge.receive.limits import ReceiveLimits
from otel_rl.bridge.receive.validate import validate
from otel_rl.bridge.rows.run import Run
from otel_rl.diagnose.history.records import Facts

_NS = 1_000_000_000
_LIMITS = ReceiveLimits()


class Intake:
    """One run at a bridge.

    Attributes:
        records: What the bridge keeps for a diagnosis, in order.
        refused: Items that it did not accept.
    """

    def __init__(self) -> None:
        self._aligner = Run()
        self._now_ns = 0
        self.records: list[Facts] = []
        self.refused = 0

    def take(self, at_ns: int, arrived: Iterable[Arrived]) -> None:
        """Take requests, and make rows."""
        self.go_on(at_ns)
        for one in arrived:
            validated = validate(one.signal, one.body, _LIMITS, at_ns)
            self.refused += sum(validated.refused.values())
            for batch in validated.batches:
                for part in decode_parts(batch):
                    self._aligner.add(part, received_ns=at_ns)
        self._turn(at_ns)

    def go_on(self, at_ns: int) -> None:
        """Make rows until this time, as a bridge does every second."""
        while self._now_ns and at_ns - self._now_ns > 2 * _NS:
            self._turn(self._now_ns + 2 * _NS)

    def _turn(self, now_ns: int) -> None:
        self._now_ns = now_ns
        self._aligner.clock_is(now_ns)
        self._aligner.close(now_ns)
        kept = self._aligner.take_history(now_ns)
        if kept is not None:
            self.records.append(Facts.decode(kept.body))
