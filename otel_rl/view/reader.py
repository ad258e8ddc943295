"""The process that reads journals for the page of a bridge, ``python -m otel_rl.view.reader``.

It imports no server, and what makes diagnoses with the first one: the first chart waits for the
imports of a process that has just started.
"""

import os
import sys
from typing import Final

import orjson

from otel_rl.bridge.child_process import answer_questions
from otel_rl.bridge.config import BridgeSettings
from otel_rl.bridge.garbage import skip_last_collections
from otel_rl.errors import OtelRLError
from otel_rl.redaction import shown
from otel_rl.view.pages import Pages
from otel_rl.view.questions import SETTINGS, Answer, Question

_IDLE_S: Final = 300.0


def main(descriptor: int) -> None:
    """Answer questions of a bridge on a socket."""
    settings = BridgeSettings.model_validate(orjson.loads(os.environ[SETTINGS]))
    pages: Pages | None = None

    def answered(question: bytes) -> bytes:
        nonlocal pages
        try:
            pages = pages or Pages(settings)
        except OtelRLError as exc:  # of the shared database; the next question tries again
            answer = Answer(503, orjson.dumps({"error": shown(str(exc))}))
        else:
            answer = pages.answer(Question(*orjson.loads(question)))
        return orjson.dumps([answer.status, answer.media, answer.encoding]) + b"\n" + answer.body

    answer_questions(descriptor, answered, idle_s=_IDLE_S)


if __name__ == "__main__":
    main(int(sys.argv[1]))
    skip_last_collections()
