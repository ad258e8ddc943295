"""Sends fuzzed requests, batch after batch, and after each of them asks for what must hold.

* Every request gets an answer that OTLP foresees: taken, taken in part, or refused as what it is.
* The bridge counts no unexpected exception, and every batch that was taken becomes rows.
* A good request is served, and its measurement stands in a row.
* Memory never grows by more than the bounds of the bridge allow for.
"""

import hashlib
import json
import math
import resource
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

from otel_rl.records import ExperimentKey, Signal
from tests.fuzz.cases import PROTOBUF, Case, make_case
from tests.fuzz.corpus import S, corpus, good_request
from tests.fuzz.stack import Stack

T0 = 1_700_000_000 * S
"""When the first batch is sent. All times are simulated."""

GOOD = ExperimentKey("good")

# Of the requests, how many go through a socket. The rest enters where the HTTP server hands over.
_OVER_HTTP, _OVER_GRPC, _AS_RAW_BYTES = 0.08, 0.02, 0.01

_BATCH_TAKES_NS = 30 * S
_MAX_FAILURES = 10

# The bridge's bounds allow for about 60 MiB with the limits of the fuzzer (see ``stack.py``), and
# the fuzzer itself and its allocator take some.
_MAX_GROWTH_MIB = 192.0


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong, and with what.

    Attributes:
        what: In words.
        batch: Its number; with the seed it makes the same requests again.
        case: The request, if it was one.
    """

    what: str
    batch: int
    case: Case | None = None


@dataclass(slots=True)
class Report:
    """What was sent, and what came of it.

    Attributes:
        seed: Makes the same requests again.
        batch_size: Requests between two good ones.
        requests: Fuzzed ones.
        good: Good ones in between, all of which were served if there is no failure.
        answers: How often each way in gave each answer.
        kinds: How often requests were made in each way.
        failures: The first of them.
        digest: Of all requests: equal seeds have equal ones.
        rss_mib: Resident memory after a tenth, and at the end.
        seconds: By the wall clock.
    """

    seed: int
    batch_size: int
    requests: int = 0
    good: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    digest: str = ""
    rss_mib: tuple[float, float] = (0.0, 0.0)
    seconds: float = 0.0

    def as_json(self) -> dict[str, object]:
        """For a file."""
        return {
            "seed": self.seed,
            "requests": self.requests,
            "good_requests_served": self.good,
            "failures": len(self.failures),
            "answers": dict(sorted(self.answers.items())),
            "kinds": dict(sorted(self.kinds.items())),
            "rss_mib_after_a_tenth": round(self.rss_mib[0], 1),
            "rss_mib_at_the_end": round(self.rss_mib[1], 1),
            "max_rss_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
            "seconds": round(self.seconds, 1),
            "digest": self.digest,
        }


class Fuzzer:
    """Drives a ``Stack`` with the requests of one seed.

    Args:
        stack: Running.
        seed: Makes the same requests again.
        batch_size: Requests between two good ones.
    """

    def __init__(self, stack: Stack, seed: int, batch_size: int = 200) -> None:
        self._stack = stack
        self._batch_size = batch_size
        self._report = Report(seed, batch_size)
        self._digest = hashlib.sha256()

    def run(self, requests: int, progress: Callable[[Report], None] = lambda _: None) -> Report:
        """Send so many requests, or fewer if too much goes wrong."""
        report, begun_s = self._report, time.monotonic()
        begun_mib = _rss_mib()
        n_batches = math.ceil(requests / self._batch_size)
        for number in range(n_batches):
            self._batch(number, min(self._batch_size, requests - report.requests))
            if number == n_batches // 10:
                report.rss_mib = (_rss_mib(), 0.0)
            report.seconds = time.monotonic() - begun_s
            grown_mib = _rss_mib() - begun_mib
            if grown_mib > _MAX_GROWTH_MIB:
                what = f"memory grew by {grown_mib:.0f} MiB, over {_MAX_GROWTH_MIB:.0f}"
                report.failures.append(Failure(what, number))
                break
            progress(report)
            if len(report.failures) >= _MAX_FAILURES:
                break
        report.rss_mib = (report.rss_mib[0], _rss_mib())
        report.digest = self._digest.hexdigest()[:16]
        return report

    def _batch(self, number: int, size: int) -> None:
        stack, report = self._stack, self._report
        # One generator for each, so that a failing batch can be made again by itself.
        random = Random(f"{report.seed}/{number}")
        stack.now_ns = T0 + number * _BATCH_TAKES_NS
        seeds = corpus(stack.now_ns)
        faults = stack.faults()
        for _ in range(size):
            case = make_case(random, seeds)
            self._digest.update(case.body)
            self._send(number, random, case)
        stack.make_rows(stack.now_ns + S)
        self._good(number)
        stack.forget_rows()
        if stack.faults() != faults:
            report.failures.append(Failure(f"the bridge counted {stack.faults()}", number))

    def _send(self, number: int, random: Random, case: Case) -> None:
        stack, report = self._stack, self._report
        report.requests += 1
        report.kinds[f"{case.kind} {case.media} {case.encoding} {case.signal}"] += 1
        choice = random.random()
        way, send = "in process", stack.take
        if choice < _OVER_HTTP:
            way, send = "http", stack.post
        elif choice < _OVER_HTTP + _OVER_GRPC:
            way, send = "grpc", stack.call
        elif choice < _OVER_HTTP + _OVER_GRPC + _AS_RAW_BYTES:
            way, send = "raw", partial(stack.send_raw, random)
        try:
            answer = send(case)
        except Exception as error:  # noqa: BLE001  # whatever it is, it is what we look for
            report.failures.append(Failure(f"{way}: {error!r}", number, case))
            return
        report.answers[f"{way} {answer}"] += 1

    def _good(self, number: int) -> None:
        stack, report = self._stack, self._report
        request = good_request(float(number), number, stack.now_ns)
        body = request.SerializeToString()
        case = Case(Signal.METRICS, PROTOBUF, "identity", body, "good")
        sends = (stack.take, stack.post, stack.call)
        try:
            answer = sends[number % len(sends)](case)
        except Exception as error:  # noqa: BLE001  # as above
            answer = repr(error)
        # Long enough for the row to be complete, whatever else the run waits for: the first row
        # of a role waits a minute for announced workers.
        stack.make_rows(stack.now_ns + S)
        stack.make_rows(stack.now_ns + 61 * S)
        rows = [row.values.get("trainer/loss") for row in stack.rows(GOOD) if row.step == number]
        if answer == "ok" and rows == [float(number)]:
            report.good += 1
        else:
            what = f"the good request was answered {answer}, its rows are {rows}"
            report.failures.append(Failure(what, number, case))


def _rss_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def save(failures: list[Failure], directory: Path) -> None:
    """Write each failing request into a file of its own, with what is known about it."""
    directory.mkdir(parents=True, exist_ok=True)
    for number, failure in enumerate(failures):
        about = {"what": failure.what, "batch": failure.batch}
        if failure.case is not None:
            case = failure.case
            about |= {"signal": case.signal, "media": case.media, "encoding": case.encoding}
            (directory / f"{number}.body").write_bytes(case.body)
        (directory / f"{number}.json").write_text(json.dumps(about, indent=2))
