"""From a step of the demo back to the weights that its samples were made with, in the real Jaeger.

rl.train of a rank  --links-->  rl.sample of generators  --link-->  their rl.sync, the pull
                                                             --link-->  weight_push of rank 0
"""

import subprocess
from collections.abc import Mapping, Sequence

import pytest

from tests.faults.keeper import wait_for
from tests.lab.running import Collector, Jaeger, Span
from tests.lab.site import QUICK
from tests.process.commands import OTEL_RL, clean_environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

STEPS = 8
RANKS = 2
ARRIVES_S = 180.0
NOBODY = "http://127.0.0.1:1"


Spans = Mapping[tuple[str, str], Span]
"""By trace and id."""


@pytest.fixture(scope="module")
def spans(tmp_path_factory: pytest.TempPathFactory) -> Spans:
    """What Jaeger has of a run of the demo."""
    directory = tmp_path_factory.mktemp("demo")
    with Jaeger(directory / "jaeger") as jaeger:
        urls = {"OTEL_RL_BRIDGE_URL": NOBODY, "OTEL_RL_JAEGER_URL": jaeger.url}
        overlay = QUICK.format(exporter="otlp_http/bridge")
        with Collector("gateway", directory / "gateway", urls, overlay) as gateway:
            door = gateway.url.removeprefix("http://")
            demo = [*OTEL_RL, "demo", "--endpoint", door, "--steps", str(STEPS), "--no-kill"]
            environment = clean_environment(directory)
            done = subprocess.run(
                demo, cwd=directory, env=environment, capture_output=True, text=True, timeout=360
            )
            assert done.returncode == 0, done.stderr
            wait_for(lambda: is_whole(found_in(jaeger)), ARRIVES_S, look_s=1.0)
        return found_in(jaeger)


def found_in(jaeger: Jaeger) -> Spans:
    found = [
        *jaeger.find("otel_rl.trainer", "rl.loop"),
        *jaeger.find("otel_rl.generator", "rl.sample"),
        *jaeger.find("otel_rl.generator", "rl.sync"),
    ]
    return {(span.trace, span.id): span for span in found}


def is_whole(spans: Spans) -> bool:
    """Whether the last step is there, and everything that it leads to."""
    trained = train_spans(spans)
    rollouts = followed(spans, trained)
    pulls = followed(spans, rollouts)
    return len(trained) == RANKS and None not in [*rollouts, *pulls, *followed(spans, pulls)]


def train_spans(spans: Spans) -> Sequence[Span]:
    """Of all ranks, in the last step."""
    last = {"rl.loop.iteration": str(STEPS)}
    return [
        s for s in spans.values() if s.name == "rl.train" and last.items() <= s.attributes.items()
    ]


def followed(spans: Spans, begun: Sequence[Span | None]) -> Sequence[Span | None]:
    """What the links of some spans lead to; None for what is not there."""
    return [spans.get(link) for span in begun if span for link in span.links]


def linked(spans: Spans, begun: Sequence[Span]) -> Sequence[tuple[Span, Span]]:
    """Each span with each that it links to."""
    return [(span, spans[link]) for span in begun for link in span.links]


def test_training_is_linked_to_the_rollouts_of_other_processes(spans: Spans) -> None:
    trained = train_spans(spans)
    assert len({span.trace for span in trained}) == RANKS
    for span, rollout in linked(spans, trained):
        assert rollout.name == "rl.sample"
        assert rollout.resource["service.name"] == "otel_rl.generator"
        assert rollout.resource["process.pid"] != span.resource["process.pid"]
        assert int(rollout.attributes["rl.policy.version"]) < STEPS
    assert all(int(span.attributes["rl.sample.origins"]) == len(span.links) for span in trained)


def test_rollouts_are_linked_to_the_weights_that_they_were_made_with(spans: Spans) -> None:
    rollouts = [rollout for _, rollout in linked(spans, train_spans(spans))]
    by_new_weights = [span for span in rollouts if span.attributes["rl.policy.version"] != "0"]
    pulled = linked(spans, by_new_weights)
    assert len(pulled) == len(by_new_weights) > 0
    for rollout, pull in pulled:
        assert pull.name == "rl.sync"
        assert pull.resource["process.pid"] == rollout.resource["process.pid"]
        assert pull.attributes["rl.policy.version"] == rollout.attributes["rl.policy.version"]


def test_weights_that_were_pulled_are_linked_to_the_step_that_pushed_them(spans: Spans) -> None:
    rollouts = [rollout for _, rollout in linked(spans, train_spans(spans))]
    pulls = [pull for _, pull in linked(spans, rollouts)]
    pushed = linked(spans, pulls)
    assert len(pushed) == len(pulls) > 0
    for pull, push in pushed:
        assert push.name == "weight_push"
        assert push.resource["rl.worker.role"] == "trainer"
        assert push.attributes["rl.loop.iteration"] == pull.attributes["rl.policy.version"]
