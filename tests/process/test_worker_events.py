"""What each way to begin and to end a process says of it."""

import sys
from collections.abc import Sequence

import pytest

from otel_rl.semconv.names import RL_WORKER_CONSOLE
from tests.process.unruly import OWN_CLOCK, Endpoint, Request, unruly, worker
from tests.support.otlp_sink import Event, Sink, events, serve
from tests.support.slow import slow_after

pytestmark = pytest.mark.process

START, BYE = "rl.experiment.start", "rl.worker.end"
COMPLETE = {"rl.worker.status": "complete"}

PROLOGUE = """
import atexit, multiprocessing, os, signal, sys, threading
import otel_rl

def log(name="loss"):
    otel_rl.log({name: 1.0}, step=1)

def kill(number):
    os.kill(os.getpid(), number)
    signal.pause()

def setup(export_interval_s=60):
    otel_rl.init(experiment="e", role="r", export_interval_s=export_interval_s)
"""


def failed(error: str) -> dict[str, object]:
    return {"rl.worker.status": "failed", "error.type": error}


def about(event: Event) -> dict[str, object]:
    return {key: value for key, value in event.attributes.items() if key != "log.record.uid"}


def goodbyes(sink: Sink) -> list[dict[str, object]]:
    return [about(event) for event in sink.events(BYE)]


def names(events: Sequence[Event]) -> list[str]:
    return [event.name for event in events]


ENDINGS = {
    "the last line": ("pass", COMPLETE),
    "sys.exit": ("sys.exit(7)", COMPLETE),
    "an exception": ("1 / 0", failed("ZeroDivisionError")),
    "an exception of a library": (
        "from otel_rl.errors import Overloaded; raise Overloaded('x')",
        failed("otel_rl.errors.Overloaded"),
    ),
    "Ctrl-C": ("kill(signal.SIGINT)", failed("KeyboardInterrupt")),
    "SIGTERM with a handler that exits": (
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143)); kill(signal.SIGTERM)",
        COMPLETE,
    ),
    "an exception that was caught": (
        "\ntry: 1 / 0\nexcept ZeroDivisionError: pass",
        COMPLETE,
    ),
    "an exception in a thread": (
        "\nthread = threading.Thread(target=lambda: 1 / 0); thread.start(); thread.join()",
        COMPLETE,
    ),
    "finish": ("otel_rl.finish()", COMPLETE),
}


@pytest.mark.parametrize(("ending", "said"), slow_after(3, ENDINGS.values()), ids=ENDINGS)
def test_a_clean_end_says_goodbye_as_the_last_thing(ending: str, said: dict[str, object]) -> None:
    with serve(Sink()) as sink, worker(sink.url, f"{PROLOGUE}\nsetup()\nlog()\n{ending}\n") as run:
        run.end()
        assert names(sink.events()) == [START, BYE]
        assert goodbyes(sink) == [said]
        assert sink.order[-2:] == ["/v1/metrics", "/v1/logs"]


def test_a_process_tells_once_what_it_runs() -> None:
    finding_out = '[t for t in threading.enumerate() if t.name == "otel-rl-provenance"]'
    program = f"{PROLOGUE}\nsetup()\nlog()\nfor t in {finding_out}: t.join()\n"
    with serve(Sink()) as sink, worker(sink.url, program, OTEL_RL_PROVENANCE="full") as run:
        assert run.end() == 0, run.output
        assert sorted(names(sink.events())) == sorted([START, "rl.worker.start", BYE])
        (told,) = (event for event in sink.events() if event.name == "rl.worker.start")
        assert told.attributes["process.executable.path"] == sys.executable


KILLED = {
    "os._exit": "os._exit(0)",
    "exec": "os.execv('/bin/true', ['true'])",
    "SIGTERM": "kill(signal.SIGTERM)",
    "SIGKILL": "kill(signal.SIGKILL)",
    "a segmentation fault": "kill(signal.SIGSEGV)",
}


@pytest.mark.parametrize("ending", slow_after(1, KILLED.values()), ids=KILLED)
def test_a_killed_process_says_nothing(ending: str) -> None:
    program = f"{PROLOGUE}\nsetup()\nlog()\nassert otel_rl.flush(timeout_s=60)\n{ending}\n"
    with serve(Sink()) as sink, worker(sink.url, program) as run:
        run.end()
        assert names(sink.events()) == [START]


CHILDREN = {
    "returns": ("log()", COMPLETE),
    "raises": ("log(); 1 / 0", failed("ZeroDivisionError")),
    "calls sys.exit": ("log(); sys.exit(5)", COMPLETE),
}


@pytest.mark.parametrize("how", slow_after(1, ["fork", "spawn"]))
@pytest.mark.parametrize(("does", "said"), slow_after(2, CHILDREN.values()), ids=CHILDREN)
def test_a_child_that_has_spoken_is_a_worker_with_a_start_and_an_end_of_its_own(
    does: str, said: dict[str, object], how: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("program") / "program.py"
    file.write_text(
        f"""{PROLOGUE}
def target():
    {does}

if __name__ == "__main__":
    setup()
    log()
    child = multiprocessing.get_context({how!r}).Process(target=target)
    child.start()
    child.join()
""",
        encoding="utf-8",
    )
    start = f"import runpy; runpy.run_path({str(file)!r}, run_name='__main__')"
    environ = {"OTEL_RL_EXPERIMENT": "e", "OTEL_METRIC_EXPORT_INTERVAL": "60000"}
    if sys.version_info >= (3, 13):  # there only the console knows of a child's exception
        environ["OTEL_RL_CONSOLE"] = "on"
    with serve(Sink()) as sink, worker(sink.url, start, **environ) as run:
        assert run.end() == 0, run.output
        instances: dict[object, list[Event]] = {}
        for event in sink.events():
            instances.setdefault(event.resource["service.instance.id"], []).append(event)
        told = [names(events) for events in instances.values()]
        assert [[n for n in of if n != RL_WORKER_CONSOLE] for of in told] == [[START, BYE]] * 2
        assert sorted(goodbyes(sink), key=len) == [COMPLETE, said]
        ids = [str(event.attributes["log.record.uid"]) for event in sink.events()]
        numbers = {i: range(1, len(events) + 1) for i, events in instances.items()}
        assert sorted(ids) == sorted(f"{i}/{n}" for i in numbers for n in numbers[i])


@pytest.mark.parametrize("how", slow_after(1, ["fork", "spawn"]))
def test_a_child_that_has_nothing_to_say_is_no_worker(
    how: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("program") / "program.py"
    file.write_text(
        f"""{PROLOGUE}
def target():
    sum(range(10))

if __name__ == "__main__":
    setup(0.05)
    log()
    with multiprocessing.get_context({how!r}).Pool(2) as pool:
        pool.apply(target); pool.close(); pool.join()
""",
        encoding="utf-8",
    )
    start = f"import runpy; runpy.run_path({str(file)!r}, run_name='__main__')"
    with serve(Sink()) as sink, worker(sink.url, start, OTEL_RL_EXPERIMENT="e") as run:
        assert run.end() == 0, run.output
        assert names(sink.events()) == [START, BYE]
        assert len({event.resource["service.instance.id"] for event in sink.events()}) == 1


def test_a_process_that_its_environment_started_says_its_start_with_its_first_word() -> None:
    program = f"""{PROLOGUE}
from opentelemetry import metrics
metrics.get_meter("m")
sys.stdin.readline()
log()
assert otel_rl.flush(timeout_s=60)
print("flushed", flush=True)
sys.stdin.readline()
"""
    environ = {"OTEL_RL_EXPERIMENT": "e", "OTEL_PYTHON_METER_PROVIDER": "otel_rl"}
    with serve(Sink()) as sink, worker(sink.url, program, **environ) as run:
        run.go_on()
        run.wait_for("flushed")
        assert names(sink.events()) == [START]
        assert sink.order[:1] == ["/v1/logs"]
        run.go_on()
        assert run.end() == 0
        assert names(sink.events()) == [START, BYE]


def test_init_after_the_first_word_does_not_hide_what_it_is_told() -> None:
    program = f"""{PROLOGUE}
log()
otel_rl.init(role="trainer", config={{"lr": 1}})
"""
    environ = {"OTEL_RL_EXPERIMENT": "e", "OTEL_METRIC_EXPORT_INTERVAL": "60000"}
    with serve(Sink()) as sink, worker(sink.url, program, **environ) as run:
        assert run.end() == 0
        assert {"rl.experiment.config": {"lr": 1}} in [about(e) for e in sink.events(START)]
        assert sink.events(BYE)[0].resource["rl.worker.role"] == "trainer"


def test_samples_arrive_in_order_once_though_answers_are_lost() -> None:
    cuts = iter(range(3))

    def lose_the_answer(endpoint: Endpoint, request: Request) -> None:
        endpoint.accept(request)
        request.cut() if next(cuts, None) is not None else request.respond(200, {}, b"")

    program = f"""{PROLOGUE}
setup(0.05)
for step in range(50):
    otel_rl.log_samples([{{"n": step}}], step=step)
assert otel_rl.flush(timeout_s=60)
"""
    with (
        unruly(manner_of_events=lose_the_answer) as endpoint,
        worker(endpoint.url, program) as run,
    ):
        assert run.end() == 0, run.output
        once = endpoint.sink.events()
        assert len(once) < len([*events(endpoint.sink.logs)]), "something came twice"
        steps = [e.attributes["rl.loop.iteration"] for e in once if "sample" in e.name]
        assert steps == list(range(50))
        assert names(once)[-1] == BYE


def test_a_goodbye_that_nobody_takes_does_not_hold_a_process_up_for_longer_than_its_end() -> None:
    def never(endpoint: Endpoint, _request: Request) -> None:
        endpoint.healed.wait(60)

    program = f"""{PROLOGUE}
{OWN_CLOCK}
setup()
sys.stdin.readline()
log()
begun_s = own_clock_s()
atexit.register(lambda: print("took", own_clock_s() - begun_s, flush=True))
print(otel_rl.finish(timeout_s=5), flush=True)
"""
    with unruly() as endpoint, worker(endpoint.url, program) as run:
        endpoint.sink.wait(lambda got: bool(got.logs))
        endpoint.manner_of_events = never
        run.go_on()
        run.wait_for("True")  # all that was recorded has been delivered
        assert run.end() == 0
        assert float(run.output.split("took")[1]) < 20


def test_without_logs_at_the_endpoint_a_script_ends_as_ever() -> None:
    def not_found(_endpoint: Endpoint, request: Request) -> None:
        request.respond(404, {}, b"")

    with (
        unruly(manner_of_events=not_found) as endpoint,
        worker(endpoint.url, f"{PROLOGUE}\nsetup()\nlog()\n") as run,
    ):
        assert run.end() == 0
        assert [m.step for m in endpoint.sink.measurements("loss")] == [1]
        assert run.output.count("accepts no log events") == 1
        assert "lost" not in run.output


def test_a_signal_handler_may_log_samples() -> None:
    program = f"""{PROLOGUE}
setup()
signal.signal(signal.SIGUSR1, lambda *_: otel_rl.log_samples([{{"from": "handler"}}]))
for step in range(200):
    if step % 10 == 0:
        os.kill(os.getpid(), signal.SIGUSR1)
    otel_rl.log_samples([{{"from": "loop"}}])
"""
    with serve(Sink()) as sink, worker(sink.url, program) as run:
        assert run.end() == 0
        bodies = [event.body for event in sink.events("rl.rollout.sample")]
        assert bodies.count({"from": "loop"}) == 200
        assert bodies.count({"from": "handler"}) == 20
