"""Step blocks of a program under ``otel-rl run``: one row a step, without ``step=`` anywhere."""

import json
import sys
import textwrap
from pathlib import Path

import pytest

from tests.process.commands import Finished, clean_environment, jsonl_rows, otel_rl
from tests.support.slow import slow_after

pytestmark = pytest.mark.process

IN_ONE_THREAD = """
    import otel_rl
    import otel_rl.integrations.wandb as wandb
    from opentelemetry import metrics

    run = wandb.init(project="p")
    gauge = metrics.get_meter("library").create_gauge("by/gauge")
    for step in range(1, 6):
        with otel_rl.step(step):
            otel_rl.log({"by": {"log": step}})
            otel_rl.mlogger.log({"by/mlogger": step})
            gauge.set(step)
            wandb.log({"by/wandb": -1})
            wandb.log({"by/wandb": step})
            otel_rl.log_samples([{"n": step}])
    wandb.finish()
"""

IN_TASKS = """
    import asyncio
    import otel_rl
    from opentelemetry import metrics

    gauge = metrics.get_meter("library").create_gauge("by/gauge")

    def evaluate(step):
        otel_rl.mlogger.log({"by/mlogger": step})

    async def rollout(step):
        await asyncio.sleep(0)
        gauge.set(step)
        otel_rl.log_samples([{"n": step}])

    async def train(step):
        async with otel_rl.step(step):
            task = asyncio.create_task(rollout(step))
            otel_rl.log({"by/log": step})
            await asyncio.to_thread(evaluate, step)
            await task

    async def main():
        for step in range(1, 6, 2):
            await asyncio.gather(train(step), *([train(step + 1)] if step < 5 else []))

    otel_rl.init()
    asyncio.run(main())
"""

IN_A_POOL = """
    import contextvars
    from concurrent.futures import ThreadPoolExecutor
    import otel_rl
    from opentelemetry import metrics

    gauge = metrics.get_meter("library").create_gauge("by/gauge")

    def work(step):
        gauge.set(step)
        otel_rl.mlogger.log({"by/mlogger": step})
        otel_rl.log_samples([{"n": step}])

    otel_rl.init()
    with ThreadPoolExecutor(2) as pool:
        for step in range(1, 6):
            with otel_rl.step(step):
                otel_rl.log({"by/log": step})
                pool.submit(contextvars.copy_context().run, work, step).result()
"""

PROGRAMS = {
    "in one thread": (IN_ONE_THREAD, {"log", "mlogger", "gauge", "wandb"}),
    "in tasks": (IN_TASKS, {"log", "mlogger", "gauge"}),
    "in a pool": (IN_A_POOL, {"log", "mlogger", "gauge"}),
}


def run(directory: Path, program: str) -> Finished:
    path = directory / "x.py"
    path.write_text(textwrap.dedent(program))
    done = otel_rl(
        *("run", "--tracker", "jsonl", "--experiment", "e", "--role", "trainer", "--"),
        *(sys.executable, path),
        cwd=directory,
        env=clean_environment(directory),
    )
    assert done.status == 0, done.err
    return done


@pytest.mark.parametrize("name", slow_after(1, PROGRAMS))
def test_each_step_is_one_row_with_all_that_was_logged_in_it(tmp_path: Path, name: str) -> None:
    program, ways = PROGRAMS[name]
    run(tmp_path, program)
    (path,) = (tmp_path / ".otel_rl").rglob("*.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    keys = [f"trainer/by/{way}" for way in sorted(ways)]
    found = [(row["step"], [row["values"].get(key) for key in keys]) for row in rows]
    each = [one for one in found if any(value is not None for value in one[1])]
    assert each == [(step, [step] * len(keys)) for step in range(1, 6)]
    samples = [
        (row["step"], cells[table["columns"].index("n")])
        for row in rows
        for table in row.get("tables", {}).values()
        for cells in table["data"]
    ]
    assert samples == [(step, step) for step in range(1, 6)]


def test_values_that_are_no_numbers_are_named_once_and_summed_up_at_the_end(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
        import otel_rl

        otel_rl.init()
        for step in range(1, 7):
            with otel_rl.step(step):
                otel_rl.log({"eval": {"loss": 1 / step}, "a": "hello", "nested": {"b": [1, 2]}})
        """,
    )
    said = [line.partition(". ")[0] for line in done.err.splitlines() if "number" in line]
    assert said == [
        "otel_rl: a: not a number (got str)",
        "otel_rl: nested/b: not a number (got list)",
        "otel_rl: 12 values of 2 keys were no numbers and were dropped: a, nested/b.",
    ]
    losses = [row.values.get("trainer/eval/loss") for row in jsonl_rows(tmp_path, "e")]
    assert [loss for loss in losses if loss is not None] == [1 / step for step in range(1, 7)]


@pytest.mark.slow
def test_the_end_of_a_run_by_one_of_its_workers_ends_the_reports_of_that_one(
    tmp_path: Path,
) -> None:
    done = run(
        tmp_path,
        """
        import otel_rl

        otel_rl.init()
        with otel_rl.step(1):
            otel_rl.log({"loss": 1.0})
        print("delivered", otel_rl.finish("aborted", timeout_s=60), otel_rl.finish())
        otel_rl.log({"loss": 2.0}, step=2)
        """,
    )
    assert "delivered True True" in done.out
    assert "otel_rl.log was called before otel_rl.init() or after otel_rl.finish()" in done.err
    rows = jsonl_rows(tmp_path, "e")
    losses = [row.values["trainer/loss"] for row in rows if "trainer/loss" in row.values]
    assert losses == [1.0]
