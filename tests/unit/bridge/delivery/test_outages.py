"""Every way in which W&B can be away or refuse, with real writers: no row is lost or doubled.

All of them are suffered at the same time, each by a run, a server and a delivery of its own.
"""

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pytest

from otel_rl.bridge.counters import TrackerFailure
from otel_rl.bridge.delivery.manager import RunState, RunStatus
from otel_rl.records import ExperimentKey
from otel_rl.run_id import run_id
from tests.faults.link import Link, Trouble
from tests.support.slow import selected
from tests.support.wandb_server import API_KEY, WandbServer
from tests.unit.bridge.delivery.bench import Bench

# Of `make test`, `test_manager.py` has a refusal, and `tests/contract/test_trackers.py` an absence.
pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(600)]

FAILED = {RunState.RETRYING, RunState.REJECTED}


@dataclass(frozen=True)
class Outage:
    """What is wrong, what the delivery makes of it, and a word of what it says."""

    what: Trouble | int
    state: RunState
    word: str

    @property
    def name(self) -> str:
        return str(self.what)


OUTAGES = [
    Outage(Trouble.REFUSED, RunState.RETRYING, "refused"),
    Outage(401, RunState.REJECTED, "WANDB_API_KEY"),
    Outage(500, RunState.RETRYING, "HTTP 500"),
    Outage(Trouble.SILENT, RunState.RETRYING, "timed out"),
    Outage(Trouble.LOST_ANSWERS, RunState.RETRYING, "cannot be reached"),
    Outage(Trouble.CUT_ANSWERS, RunState.RETRYING, "127.0.0.1"),
    Outage(400, RunState.REJECTED, "HTTP 400"),
    Outage(403, RunState.REJECTED, "WANDB_API_KEY"),
    Outage(404, RunState.REJECTED, "WANDB_BASE_URL"),
    Outage(409, RunState.RETRYING, "HTTP 409"),
    Outage(429, RunState.RETRYING, "HTTP 429"),
]
BY_NAME = {outage.name: outage for outage in OUTAGES}


@dataclass
class Story:
    """What became of a run that suffered an outage.

    Attributes:
        during: How it stood in the middle of it.
        remembered: What was remembered of it for a person who asks later: state and error.
        reasons: The counted reasons of its retries.
        numbers: ``_step`` of the server's lines, at the end.
    """

    during: RunStatus
    remembered: list[tuple[str, str]] = field(default_factory=list)
    reasons: Mapping[str, int] = field(default_factory=dict)
    numbers: list[float] = field(default_factory=list)


def suffer(outage: Outage, directory: Path) -> Story:
    """A run is written to W&B; then W&B fails, rows come all the same; then all is well again."""
    key = ExperimentKey(f"outage {outage.name}")
    with ExitStack() as stack:
        server = stack.enter_context(WandbServer())
        link = stack.enter_context(Link(int(server.base_url.rpartition(":")[2])))
        bench = Bench(directory)
        bench.settings = replace(
            bench.settings,
            tracker="wandb",
            attributes={
                "base_url": link.url,
                "transmit_interval_s": "1",
                "stall_timeout_s": "10",
                "finish_timeout_s": "60",
            },
        )
        stack.callback(bench.stop, timeout_s=60)
        bench.feed(key, 20)
        bench.wait_for(key, lambda status: status.safe_row == 20)
        if isinstance(outage.what, Trouble):
            link.suffer(outage.what)
            stack.callback(link.suffer, Trouble.NONE)
        else:
            server.fail(outage.what)
        bench.feed(key, 20)
        bench.wait_for(key, lambda _: sum(bench.reasons.values()) >= 2)
        story = Story(bench.wait_for(key, lambda status: status.state in FAILED))
        link.suffer(Trouble.NONE)
        server.heal()
        bench.wait_for(key, lambda status: status.safe_row == 40 and not status.last_error)
        bench.stop()
        story.remembered = bench.source.errors
        story.reasons = bench.reasons
        story.numbers = [row["_step"] for row in server.history(run_id(key.experiment, key.trial))]
    return story


@pytest.fixture(scope="module")
def log() -> Iterator[list[str]]:
    """The warnings of all deliveries."""
    lines: list[str] = []

    class Keeper(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    keeper = Keeper(logging.WARNING)
    logger = logging.getLogger("otel_rl.bridge.delivery")
    logger.addHandler(keeper)
    yield lines
    logger.removeHandler(keeper)


@pytest.fixture(scope="module")
def stories(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, log: list[str]
) -> Iterator[Callable[[str], Story]]:
    directory = tmp_path_factory.mktemp("outages")
    outages = [BY_NAME[name] for name in selected(request, "outage")]
    with pytest.MonkeyPatch.context() as environment, ThreadPoolExecutor(len(outages)) as pool:
        for variable in [name for name in os.environ if name.startswith("WANDB_")]:
            environment.delenv(variable)
        environment.setenv("HOME", str(directory))
        environment.setenv("WANDB_API_KEY", API_KEY)
        begun = {
            outage.name: pool.submit(partial(suffer, outage, directory / str(place)))
            for place, outage in enumerate(outages)
        }
        yield lambda name: begun[name].result()


@pytest.fixture(params=BY_NAME)
def outage(request: pytest.FixtureRequest) -> Outage:
    return BY_NAME[request.param]


@pytest.fixture
def story(outage: Outage, stories: Callable[[str], Story]) -> Story:
    return stories(outage.name)


def test_no_row_is_lost_or_doubled_and_delivery_goes_on_by_itself(story: Story) -> None:
    assert story.numbers == list(range(40))


def test_the_rows_are_kept_meanwhile(story: Story) -> None:
    assert story.during.safe_row == 20


def test_the_state_tells_a_refusal_from_an_absence(outage: Outage, story: Story) -> None:
    assert story.during.state is outage.state


def test_the_status_says_why(outage: Outage, story: Story) -> None:
    assert outage.word in story.during.last_error


def test_every_retry_is_counted_by_its_reason(outage: Outage, story: Story) -> None:
    is_refusal = outage.state is RunState.REJECTED
    expected = TrackerFailure.REJECTED if is_refusal else TrackerFailure.UNAVAILABLE
    assert story.reasons.get(expected, 0) >= 1
    assert not story.reasons.get(TrackerFailure.UNEXPECTED)


def test_the_reason_is_remembered_until_rows_are_taken_again(outage: Outage, story: Story) -> None:
    *failures, last = [(state, error) for state, error in story.remembered if error or state]
    assert [error for _, error in failures if error]
    assert last == (RunState.LIVE, "")


def test_the_log_says_so_once_and_not_at_every_retry(
    outage: Outage, story: Story, log: list[str]
) -> None:
    assert len([line for line in log if f"outage {outage.name}/" in line]) == 1
