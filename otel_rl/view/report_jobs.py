"""Reports that readers of the page ask for, made between the answers to other questions."""

import gzip
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import orjson

from otel_rl.errors import ConfigError
from otel_rl.view.pages import Answer, Pages, Question
from otel_rl.view.report import ReportSteps, report_steps

__all__ = ["UNFINISHED", "ReportJobs"]

UNFINISHED: Final = 202
"""Status of an answer after which the same question is asked again."""

_MOST: Final = 4
_FORGOTTEN_S: Final = 60.0  # its reader has gone


@dataclass(slots=True)
class _Job:
    steps: ReportSteps
    question: Question
    asked_s: float


class ReportJobs:
    """Answers the questions of the page; ``runs/<id>/report`` is the run as one HTML file.

    A report is many questions, one for each time that it is asked for: the answer is
    ``UNFINISHED`` until the last one. One thread.

    Args:
        pages: Answers questions.
        clock_s: Monotonic, in seconds.
    """

    def __init__(self, pages: Pages, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._pages = pages
        self._clock_s = clock_s
        self._jobs: dict[tuple[str, str], _Job] = {}  # by the ticket of the request, and its run

    def answer(self, question: Question) -> Answer:
        """Answer a question; of a report the query has a ``ticket`` for each reader."""
        match question.path.split("/"):
            case ["runs", run, "report"]:
                return self._report(run, question)
        return self._pages.answer(question)

    def _report(self, run: str, question: Question) -> Answer:
        now_s, place = self._clock_s(), (question.query.get("ticket", ""), run)
        job = self._jobs.pop(place, None)
        if job is None:
            overview = self._pages.answer(question._replace(path=f"runs/{run}/overview", query={}))
            if overview.status != 200:
                return overview
            self._forget(now_s)
            if len(self._jobs) >= _MOST:
                return _refusal("Too many reports are being made, try again in a minute.")
            steps = report_steps(run)
            job = _Job(steps, next(steps), now_s)
        try:
            job.question = job.steps.send(self._pages.answer(job.question))
        except StopIteration as end:
            return Answer(200, gzip.compress(end.value.encode(), 1), "text/html", "gzip")
        except ConfigError as exc:
            return _refusal(str(exc))
        except Exception as exc:  # noqa: BLE001  # the page goes on, and other reports
            return self._pages.failed(question, exc)
        job.asked_s = self._clock_s()
        self._jobs[place] = job
        return Answer(UNFINISHED, b"{}")

    def _forget(self, now_s: float) -> None:
        self._jobs = {
            place: job for place, job in self._jobs.items() if now_s - job.asked_s < _FORGOTTEN_S
        }


def _refusal(why: str) -> Answer:
    return Answer(503, orjson.dumps({"error": why}))
