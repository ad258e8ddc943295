"""Every measurement is in one row, at its step, however often the power fails meanwhile.

As in ``test_power_cut.py``, with the real drain and aligner at work in the journal's process. A
sender repeats what was not acknowledged before the loss of power, byte by byte.
"""

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from otel_rl.bridge.journal.runs import RunStore
from otel_rl.bridge.journal.sqlite import SqliteJournal
from tests.disk.child import drain_of
from tests.disk.model import RUNS, key
from tests.disk.power_failure import Life
from tests.disk.recorder import Recorder, compiler
from tests.simulation import otlp
from tests.support.slow import examples

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(compiler() is None, reason="there is no C compiler (cc)"),
]

_S = 1_000_000_000
_START_NS = 1_700_000_000 * _S


@dataclass(slots=True)
class Request:
    """What a sender has to send.

    Attributes:
        run: Whose.
        content: In hexadecimal digits.
        measured: Value, which nobody else has, and step of each measurement in it.
        acknowledged: Length of the log when the bridge had taken it; None if it has not.
    """

    run: str
    content: str
    measured: tuple[tuple[int, int | None], ...]
    acknowledged: int | None = None


class PowerCutsWhileDraining(RuleBasedStateMachine):
    """Requests in, rows out, and the power fails now and then."""

    recorder: ClassVar[Recorder]

    @initialize()
    def begin(self) -> None:
        self.now_ns = _START_NS
        self.values = 0
        self.tiled_ns = dict.fromkeys(RUNS, _START_NS)
        self.requests: list[Request] = []
        self.life = Life(self.recorder)

    @rule(
        run=st.sampled_from(RUNS),
        measured=st.lists(st.integers(0, 3) | st.none(), min_size=1, max_size=5),
    )
    def measure(self, run: str, measured: list[int | None]) -> None:
        """A worker measures, at steps or at none, and sends it."""
        marks = []
        for step in measured:
            self.values += 1
            marks.append((self.now_ns + self.values, self.values, step))
        start_ns, self.tiled_ns[run] = self.tiled_ns[run], marks[-1][0]
        resource: dict[str, str | int] = {
            "rl.experiment.name": run,
            "rl.worker.index": 0,
            "service.instance.id": "one",
            "telemetry.distro.name": "otel_rl",
        }
        metric = otlp.measurements("value", start_ns, self.tiled_ns[run], marks)
        beat = otlp.piece(resource, otlp.heartbeat(self.tiled_ns[run]))
        content = (otlp.piece(resource, metric) + beat).hex()
        self.requests.append(
            Request(run, content, tuple((value, step) for _, value, step in marks))
        )
        self.send(self.requests[-1])

    @rule()
    def repeat(self) -> None:
        """The answer to the last request was lost."""
        if self.requests:
            self.send(self.requests[-1])

    @rule(seconds=st.sampled_from([0.0, 0.5, 2.0, 5.0]))
    def make_rows(self, seconds: float) -> None:
        """Time passes, and the drain looks at what there is."""
        self.now_ns += int(seconds * _S)
        self.life.ask("round", now_ns=self.now_ns)

    @rule()
    def reopen(self) -> None:
        """An orderly end and another start."""
        self.life.ask("reopen")

    @rule(back=st.integers(0, 30) | st.integers(0, 1_000), seed=st.integers(0, 1 << 32))
    def fail_power(self, back: int, seed: int) -> None:
        """Lose the power some changes ago; the sender repeats what it has no answer for."""

        def check(journal: SqliteJournal, cut: int) -> None:
            found = self.found_in(journal)
            for request in self.requests:
                if request.acknowledged is not None and request.acknowledged > cut:
                    request.acknowledged = None
                steps = [found[value] for value, _ in request.measured]
                is_whole = all(
                    len(at) == 1 and step in {None, at[0]}
                    for at, (_, step) in zip(steps, request.measured, strict=True)
                )
                assert is_whole or (request.acknowledged is None and not any(steps))

        self.life = self.life.fail_power(back, seed, check)
        for request in self.requests:
            if request.acknowledged is None:
                self.send(request)
            else:
                request.acknowledged = 0  # it is in what this life began with

    def teardown(self) -> None:
        if hasattr(self, "life"):
            self.fail_power(0, 0)
            self.fail_power(0, 0)

    def send(self, request: Request) -> None:
        self.life.ask("accept", run=request.run, request=request.content, received_ns=self.now_ns)
        if request.acknowledged is None:
            request.acknowledged = self.life.end

    def found_in(self, journal: SqliteJournal) -> Mapping[int, Sequence[int]]:
        """The steps of the rows in which each value is, once rows are made of everything."""
        drain = drain_of(journal)
        while drain.round(self.now_ns):
            pass
        drain.finish(self.now_ns)
        found: defaultdict[int, list[int]] = defaultdict(list)
        for run in RUNS:
            run_store = RunStore(journal)
            rows = run_store.rows(key(run), start=0, limit=1 << 30)
            assert [row.number for row in rows] == list(range(run_store.next_row(key(run))))
            for row in rows:
                for name, value in row.values.items():
                    if name.startswith("workers/"):
                        found[int(value)].append(row.step)
        return found


def test_every_measurement_is_in_one_row_whenever_the_power_fails(scratch: Path) -> None:
    with Recorder(scratch) as recorder:
        PowerCutsWhileDraining.recorder = recorder
        run_state_machine_as_test(
            PowerCutsWhileDraining,
            settings=settings(
                max_examples=int(os.environ.get("POWER_CUT_RUNS", examples(40))),
                stateful_step_count=20,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
