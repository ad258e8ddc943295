"""Ranks continue the trace of their launcher."""

from pathlib import Path

import pytest

from tests.frameworks.conftest import Runner

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"

SCRIPT = """
    import otel_rl
    import torch, torch.distributed as dist
    from opentelemetry import trace

    dist.init_process_group("gloo")
    ones = torch.ones(1)
    dist.all_reduce(ones)
    assert ones.item() == 2
    otel_rl.init(role="trainer")

    def parts(span):
        around = span.links[0].context if span.links else span.parent
        own = format(span.get_span_context().trace_id, "032x")
        return f"{own} {format(around.trace_id, '032x')} {format(around.span_id, '016x')}"

    with trace.get_tracer("m").start_as_current_span("setup") as setup:
        pass
    with otel_rl.step(1):
        step = trace.get_current_span()
    line = f"rank {dist.get_rank()} setup {parts(setup)} step {parts(step)}\\n"
    with open(f"rank-{dist.get_rank()}.txt", "w") as file:
        file.write(line)
    assert otel_rl.finish(timeout_s=60)
    dist.destroy_process_group()
"""


LAUNCHERS = {
    "torchrun": ["torch.distributed.run", "--standalone", "--nproc-per-node=2"],
    "accelerate": [
        "accelerate.commands.launch", "--multi_gpu", "--num_machines=1", "--num_processes=2",
        "--mixed_precision=no", "--dynamo_backend=no",
    ],
}  # fmt: skip


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_each_rank_continues_the_trace_of_its_launcher(frameworks: Runner, launcher: str) -> None:
    command: list[str | Path] = [
        frameworks.python, "-m", "otel_rl", "run", "--experiment", "real",
        "--tracker", "jsonl", "--", frameworks.python, "-m", *LAUNCHERS[launcher],
        frameworks.script(SCRIPT),
    ]  # fmt: skip
    done = frameworks.start(*command, env={"TRACEPARENT": f"00-{TRACE}-{SPAN}-01"})
    assert done.status == 0, done.err
    for rank in range(2):
        words = (frameworks.directory / f"rank-{rank}.txt").read_text().split()
        assert words[:6] == ["rank", str(rank), "setup", TRACE, TRACE, SPAN]
        assert words[7] != TRACE  # a step is a root
        assert words[8:] == [TRACE, SPAN]  # and links to the launcher's span
