"""Refused items of one request, and the message about them for its sender."""

from collections.abc import Mapping

from otel_rl.bridge.counters import Refusal
from otel_rl.records import ExperimentKey
from otel_rl.redaction import printable

MAX_MESSAGE_BYTES = 4096  # Go's client reads 64 KiB of an answer, logs show far less

_MAX_DETAIL_BYTES = 200

_HINTS = {
    Refusal.NO_EXPERIMENT: (
        "Set it with otel_rl.init(experiment=...) or OTEL_RESOURCE_ATTRIBUTES="
        "rl.experiment.name=NAME, or give the bridge a default_experiment."
    ),
    Refusal.NOT_ALLOWED: "Use another experiment name, or have the token's experiments extended.",
    Refusal.WRONG_TEAM: (
        "Only a collector whose token has gateway = true names teams, by the resource attribute "
        "otel_rl.team; see `otel-rl help teams`."
    ),
    Refusal.TOO_MANY_EXPERIMENTS: "Reuse experiment and trial names, or raise the bridge's limit.",
    Refusal.SHARE_USED_UP: (
        "Reuse experiment and trial names, wait until some have ended, or have the token's share "
        "raised."
    ),
    Refusal.INVALID_NAME: "Use a string of printable characters within the limit.",
    Refusal.INVALID_METRIC_NAME: "Name the instrument, with few characters.",
    Refusal.INVALID_ID: "Send 16 bytes of trace id and 8 bytes of span id, not all zero.",
    Refusal.MALFORMED: (
        "A text is no UTF-8, a value has another type or is nested over 100 levels deep, or bytes "
        "were damaged."
    ),
    Refusal.INVALID_EVENT: "`otel-rl help semantic-conventions` lists what each event has.",
    Refusal.EVENT_TOO_LARGE: "Shorten it.",
    Refusal.SPAN_TOO_LARGE: "Send less in it.",
    Refusal.NO_VALUE: "Send a number, or the flag NO_RECORDED_VALUE.",
    Refusal.INVALID_BUCKETS: "Bounds ascend and are one fewer than the counts.",
    Refusal.TOO_MANY_ATTRIBUTES: "Send what varies as a value.",
    Refusal.ATTRIBUTE_TOO_LONG: "Shorten it.",
    Refusal.TOO_MANY_BUCKETS: "Use fewer buckets.",
    Refusal.TOO_MANY_EXEMPLARS: "Export more often.",
    Refusal.TIME_OUT_OF_RANGE: "Check the sender's clock; times are nanoseconds since 1970.",
}


class Refusals:
    """Counts refused items, and keeps the first example of each reason.

    Args:
        unit: Name of the counted items, in the plural, e.g. "data points".
    """

    def __init__(self, unit: str) -> None:
        self.of_runs: dict[tuple[ExperimentKey | None, Refusal], int] = {}
        self.exemplars: dict[Refusal, int] = {}
        self._unit = unit
        self._examples: dict[tuple[str, Refusal], str] = {}

    def add(
        self, reason: Refusal, detail: str, n: int = 1, *, run: ExperimentKey | None = None
    ) -> None:
        """Count ``n`` refused items. ``detail`` names the fault, as a sentence without stop.

        If ``n`` is 0, nothing is counted or reported.
        """
        if n:
            self.of_runs[run, reason] = self.of_runs.get((run, reason), 0) + n
            self._examples.setdefault((self._unit, reason), detail)

    def add_exemplars(self, reason: Refusal, detail: str, n: int) -> None:
        self.exemplars[reason] = self.exemplars.get(reason, 0) + n
        self._examples.setdefault(("exemplars", reason), detail)

    def message(self) -> str:
        """Return the message, one line up to ``MAX_MESSAGE_BYTES``; empty for no refusals."""
        sentences = []
        items = by_reason(self.of_runs)
        for (unit, reason), detail in self._examples.items():
            counts = self.exemplars if unit == "exemplars" else items
            sentences.append(
                f"{unit.capitalize()} refused: {counts[reason]} ({reason}). "
                f"{shorten(printable(detail), _MAX_DETAIL_BYTES)}. {_HINTS[reason]}"
            )
        return shorten(" ".join(sentences), MAX_MESSAGE_BYTES)


def by_reason(
    of_runs: Mapping[tuple[ExperimentKey | None, Refusal], int],
) -> Mapping[Refusal, int]:
    refused: dict[Refusal, int] = {}
    for (_, reason), n in of_runs.items():
        refused[reason] = refused.get(reason, 0) + n
    return refused


def shorten(text: str, max_bytes: int) -> str:
    """Cut a text to ``max_bytes`` of UTF-8, between characters; a cut text ends with "..."."""
    encoded = text.encode()
    if len(encoded) <= max_bytes:
        return text
    return encoded[: max_bytes - 3].decode(errors="ignore") + "..."
