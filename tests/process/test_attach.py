"""``otel-rl run --attach -- CMD``: CMD's own W&B run gets the bridge's rows."""

import json
import shlex
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from otel_rl.cli.environment import adapter_environment
from otel_rl.run_id import run_id
from tests.process.commands import (
    OPEN_FOR_LONG,
    OTEL_RL,
    Finished,
    clean_environment,
    http_address,
    otel_rl,
    otel_rl_here,
    wandb_run,
)
from tests.support import plain_http, waiting
from tests.support.otlp_requests import Attributes, gauge, key_values, metrics_request, point
from tests.support.ports import free_ports
from tests.support.wandb_offline import run_directories
from tests.support.wandb_server import WandbServer

pytestmark = pytest.mark.process

DEADLINE_S = 90.0
wait_until = partial(waiting.wait_until, timeout_s=DEADLINE_S)

# Nothing in it knows of otel_rl; the gauge is OpenTelemetry's.
TRAIN = textwrap.dedent("""
    import sys
    import wandb
    from opentelemetry import metrics

    run = wandb.init(project="theirs", config={"lr": 3}, settings=wandb.Settings(console="off"))
    run.define_metric("trainer/loss", step_metric="global_step")
    reward = metrics.get_meter("train").create_gauge("reward")
    for step in range(50):
        run.log({"trainer/loss": 1.0 / (step + 1), "global_step": step})
        reward.set(float(step), {"rl.loop.iteration": step})
    run.finish()
    sys.exit(int(sys.argv[1]))
""")


@pytest.fixture(scope="module")
def server() -> Iterator[WandbServer]:
    with WandbServer() as server:
        yield server


def environment(home: Path, server: WandbServer, **extra: str) -> dict[str, str]:
    variables = {**server.environment(), "WANDB_ERROR_REPORTING": "false"}
    del variables["WANDB_MODE"]
    return clean_environment(home, **variables | extra)


@pytest.mark.slow
def test_one_run_has_what_the_script_logs_to_wandb_and_what_it_reports_by_otel(
    tmp_path: Path, server: WandbServer
) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    command: list[str | Path] = [sys.executable, tmp_path / "train.py", "3"]
    before = server.run_ids()
    done = otel_rl(
        *("run", "--experiment", "grpo", "--role", "trainer", "--attach", "--"),
        *command,
        cwd=tmp_path,
        env=environment(tmp_path, server),
    )
    assert done.status == 3, done.err
    (mine,) = set(server.run_ids()) - set(before)
    history = server.history(mine)
    own = [(row["global_step"], row["trainer/loss"]) for row in history if "trainer/loss" in row]
    assert own == [(step, 1 / (step + 1)) for step in range(50)]
    reported = {
        row["otel_rl/step"]: row["otel_rl/trainer/reward"]
        for row in history
        if "otel_rl/trainer/reward" in row
    }
    assert reported == {step: float(step) for step in range(50)}
    run = server.run(mine)
    assert (run.project, run.complete, run.exit_code) == ("theirs", True, 0)
    assert json.dumps(run.config["lr"]) == '{"value": 3}'


MEDIA = """
import numpy
import otel_rl
import wandb

with wandb.init(project="theirs", id="{id}", mode="online") as run:
    for step in range(10):
        picture = wandb.Image(numpy.full((4, 4, 3), step, "uint8"))
        run.log({{"mine": float(step), "picture": picture}}, step=10 * step)
        otel_rl.log({{"loss": float(step)}}, step=step)
    artifact = wandb.Artifact("weights", type="model")
    with artifact.new_file("weights.txt") as file:
        file.write("1 2 3")
    run.log_artifact(artifact)
"""


def attached(home: Path, server: WandbServer, code: str, **extra: str) -> Finished:
    """``otel-rl run --attach`` with the code as the only process."""
    command = ("--attach", "--", sys.executable, "-c", textwrap.dedent(code))
    run = ("run", "--experiment", "grpo", "--role", "trainer", *command)
    return otel_rl(*run, cwd=home, env=environment(home, server, **extra))


def losses(server: WandbServer, run: str) -> list[float]:
    key = "otel_rl/trainer/loss"
    return sorted(row[key] for row in server.history(run) if key in row)


@pytest.mark.slow
def test_media_and_an_id_of_the_code_stay_and_the_argument_step_is_an_axis(
    tmp_path: Path, server: WandbServer
) -> None:
    done = attached(tmp_path, server, MEDIA.format(id="media"))
    assert done.status == 0, done.err
    history = server.history("media")
    own = [row for row in history if "mine" in row]
    assert [(row["mine"], row["otel_rl/step"]) for row in own] == [(n, 10 * n) for n in range(10)]
    assert {row["picture"]["_type"] for row in own} == {"image-file"}  # type: ignore[index]
    assert losses(server, "media") == [float(n) for n in range(10)]
    metrics = server.run("media").config["_wandb"]["value"]["m"]  # type: ignore[index]
    # The stand-in keeps each state of a definition that the SDK sent; the last one holds.
    *_, axis = [one for one in metrics if one.get("1") == "*" or one.get("2") == "*"]
    assert metrics[axis["5"] - 1]["1"] == "otel_rl/step"


@pytest.mark.slow
def test_each_run_of_a_loop_has_the_rows_of_its_own_time(
    tmp_path: Path, server: WandbServer
) -> None:
    done = attached(
        tmp_path,
        server,
        """
        import otel_rl
        import wandb

        for seed in range(3):
            with wandb.init(project="theirs", id=f"seed-{seed}") as run:
                for step in range(5):
                    run.log({"mine": 10 * seed + step})
                    otel_rl.log({"loss": 10.0 * seed + step}, step=step)
        """,
    )
    assert done.status == 0, done.err
    for seed in range(3):
        expected = [10.0 * seed + step for step in range(5)]
        assert losses(server, f"seed-{seed}") == expected
        assert [row["mine"] for row in server.history(f"seed-{seed}") if "mine" in row] == expected
        assert server.run(f"seed-{seed}").complete


@pytest.mark.slow
def test_ranks_that_only_report_are_in_the_run_of_the_one_that_makes_it(
    tmp_path: Path, server: WandbServer
) -> None:
    before = set(server.run_ids())
    done = attached(
        tmp_path,
        server,
        """
        import os
        import subprocess
        import sys

        RANK = '''
        import os
        import otel_rl
        rank = int(os.environ["RANK"])
        otel_rl.init(role="trainer")
        if rank == 0:
            import wandb
            wandb.init(project="theirs", id="of-rank-0", name="seed 7")
        for step in range(5):
            otel_rl.log({"loss": 100.0 * rank + step}, step=step)
        '''.replace(8 * " ", "")
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", RANK],
                env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2"},
            )
            for rank in range(2)
        ]
        sys.exit(max(rank.wait() for rank in ranks))
        """,
        **OPEN_FOR_LONG,
    )
    assert done.status == 0, done.err
    assert set(server.run_ids()) - before == {"of-rank-0"}
    assert losses(server, "of-rank-0") == [50.0 + step for step in range(5)]
    assert server.run("of-rank-0").display_name == "seed 7"


REPORTING = """
import otel_rl
{first}
for step in range(5):
    otel_rl.log({{"loss": float(step)}}, step=step)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "said"),
    [
        ("", "no W&B run that could be joined"),
        (
            "import wandb; wandb.init(project='theirs', id='resumed', resume='allow')",
            "A resumed W&B run cannot be joined",
        ),
        (
            "import wandb; wandb.init(project='theirs', id='off', mode='offline')",
            "This W&B run is offline and cannot be joined",
        ),
    ],
    ids=["none", "resumed", "offline"],
)
def test_without_a_run_to_join_the_rows_are_in_one_of_otel_rls_own_and_it_says_so(
    tmp_path: Path, server: WandbServer, first: str, said: str
) -> None:
    experiment = {"OTEL_RL_TRIAL": f"fall-back-{said[:8]}"}
    done = attached(tmp_path, server, REPORTING.format(first=first), **experiment)
    assert done.status == 0, done.err
    assert said in done.err
    own = run_id("grpo", experiment["OTEL_RL_TRIAL"])
    found = [row["trainer/loss"] for row in server.history(own) if "trainer/loss" in row]
    assert found == [float(step) for step in range(5)]
    assert server.run(own).project == "otel_rl"
    if "resumed" in first:
        assert not server.run("resumed").shared


@pytest.mark.slow
def test_offline_the_programs_run_is_untouched_and_the_rows_are_in_one_beside_it(
    tmp_path: Path, server: WandbServer
) -> None:
    before = server.run_ids()
    code = REPORTING.format(first="import wandb; wandb.init(project='theirs', id='mine')")
    done = attached(tmp_path, server, code, WANDB_MODE="offline")
    assert done.status == 0, done.err
    assert done.err.count("W&B is offline here") == 1
    assert len(run_directories(tmp_path, "mine")) == 1
    rows = wandb_run(tmp_path, "grpo").history
    assert [row["trainer/loss"] for row in rows if "trainer/loss" in row] == [0, 1, 2, 3, 4]
    assert server.run_ids() == before


@pytest.mark.slow
def test_without_the_option_code_that_makes_a_run_of_its_own_hears_of_it_once(
    tmp_path: Path, server: WandbServer
) -> None:
    code = REPORTING.format(first="import wandb; wandb.init(project='theirs', id='beside')")
    done = otel_rl(
        *("run", "--experiment", "grpo", "--", sys.executable, "-c", code),
        cwd=tmp_path,
        env=environment(tmp_path, server),
    )
    assert done.err.count("`otel-rl run --attach`") == 1, done.err
    assert not server.run("beside").shared


def test_the_option_needs_the_tracker_wandb_and_the_adapters(
    tmp_path: Path, server: WandbServer
) -> None:
    for other in (("--tracker", "jsonl"), ("--no-adapters",)):
        done = otel_rl_here(
            *("run", "--attach", *other, "--", sys.executable, "-c", ""),
            cwd=tmp_path,
            env=environment(tmp_path, server),
        )
        assert done.status == 2
        assert other[0].strip("-") in done.err


OWNER = """
import sys
import wandb

with wandb.init(id=sys.argv[1], settings=wandb.Settings(console="off")) as run:
    for line in sys.stdin:
        run.log({"mine": int(line)})
        print(line, flush=True)
"""


@contextmanager
def started(*command: str, env: Mapping[str, str], cwd: Path) -> Iterator["subprocess.Popen[str]"]:
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, env=env, cwd=cwd, stdin=pipe, stdout=pipe, stderr=pipe, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def bridge(
    home: Path, env: Mapping[str, str], port: int, *options: str
) -> Iterator["subprocess.Popen[str]"]:
    ports = ("--http", f"127.0.0.1:{port}", "--grpc", "127.0.0.1:0")
    with started(*OTEL_RL, "bridge", *ports, *options, env=env, cwd=home) as process:
        assert http_address(process).endswith(f":{port}")
        yield process


def report(url: str, steps: range) -> None:
    """One exact gauge, its value being the step."""
    resource: Attributes = {
        "rl.experiment.name": "grpo",
        "rl.worker.role": "trainer",
        "service.instance.id": "1",
    }
    now = time.time_ns()
    points = [point(float(step), now + step) for step in steps]
    for step, made in zip(steps, points, strict=True):
        made.attributes.extend(key_values({"rl.loop.iteration": step}))
    content = metrics_request(gauge(*points), resource=resource).SerializeToString()
    headers = {"Content-Type": "application/x-protobuf"}
    plain_http.post(
        f"{url}/v1/metrics", content=content, headers=headers, timeout=60
    ).raise_for_status()


CUT_OFF = """
import sys
import otel_rl
import wandb

wandb.init(project="theirs", id="cut-off").finish()
print("made", flush=True)
sys.stdin.readline()
for step in range(5):
    otel_rl.log({"loss": float(step)}, step=step)
"""


@pytest.mark.slow
def test_the_command_that_writes_the_rest_writes_it_to_the_same_run(
    tmp_path: Path, server: WandbServer
) -> None:
    env = environment(tmp_path, server)
    hurried = {**env, "OTEL_RL_BRIDGE__STOP_TIMEOUT": "2", "WANDB_SILENT": "true"}
    run = ("run", "--experiment", "grpo", "--role", "trainer", "--attach", "--")
    command = (*OTEL_RL, *run, sys.executable, "-c", CUT_OFF)
    with started(*command, env=hurried, cwd=tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "made\n"
        server.fail(503)
        _, err = process.communicate("\n", DEADLINE_S)
    server.heal()
    assert losses(server, "cut-off") == []
    (line,) = [line for line in err.splitlines() if "write the rest with" in line]
    rest = shlex.split(line.partition("otel-rl ")[2])
    before = server.run_ids()
    patient = {**env, "OTEL_RL_BRIDGE__STOP_TIMEOUT": "60"}
    done = otel_rl(*rest, cwd=tmp_path, env=patient)
    assert done.status == 0, done.err
    assert losses(server, "cut-off") == [0, 1, 2, 3, 4]
    assert server.run_ids() == before


@pytest.mark.slow
def test_the_rest_of_a_command_that_had_made_no_run_yet_is_written_to_a_run_of_otel_rls_own(
    tmp_path: Path, server: WandbServer
) -> None:
    env = environment(tmp_path, server, OTEL_RL_TRIAL="killed", **OPEN_FOR_LONG)
    code = REPORTING.format(first="") + "otel_rl.flush()\nprint('told', flush=True)\ninput()\n"
    run = ("run", "--experiment", "grpo", "--role", "trainer", "--attach", "--")
    with started(*OTEL_RL, *run, sys.executable, "-c", code, env=env, cwd=tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "told\n"
        process.kill()
        process.wait(DEADLINE_S)
    done = otel_rl("finish", cwd=tmp_path, env=env)
    assert done.status == 0, done.err
    assert "no W&B run that could be joined" in done.err
    history = server.history(run_id("grpo", "killed"))
    found = [row["trainer/loss"] for row in history if "trainer/loss" in row]
    assert found == [float(step) for step in range(5)]


NAMED = {"WANDB_MODE": "shared", "WANDB_RUN_ID": "named", "WANDB_PROJECT": "theirs"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("run", "variables", "options"),
    [("made", {"WANDB_PROJECT": "theirs"}, ["--attach"]), ("named", NAMED, [])],
    ids=["made", "named"],
)
def test_a_bridge_that_was_killed_writes_every_row_once_and_leaves_the_owners_alone(
    tmp_path: Path,
    server: WandbServer,
    run: str,
    variables: Mapping[str, str],
    options: Sequence[str],
) -> None:
    env = environment(
        tmp_path,
        server,
        **variables,
        OTEL_RL_BRIDGE__TRACKER__OPTIONS__TRANSMIT_INTERVAL_S="1",
        OTEL_RL_BRIDGE__TRACKER__OPTIONS__SETTLE_S="2",
        OTEL_RL_BRIDGE__ROWS__WAIT="1",
    )
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    of_owner = env
    if options:
        of_owner = {
            **env,
            "OTEL_RL_ATTACH": "share",
            "OTEL_EXPORTER_OTLP_ENDPOINT": url,
            "OTEL_RL_EXPERIMENT": "grpo",
            "OTEL_RL_EXIT_TIMEOUT": "1",
            **adapter_environment(env, is_wanted=True),
        }
    with started(sys.executable, "-c", OWNER, run, env=of_owner, cwd=tmp_path) as owner:
        assert owner.stdin is not None
        assert owner.stdout is not None
        for life in range(3):
            with bridge(tmp_path, env, port, *options) as process:
                report(url, range(100 * life, 100 * life + 100))
                owner.stdin.write(f"{life}\n")
                owner.stdin.flush()
                owner.stdout.readline()
                wait_until(
                    lambda life=life: len(losses(server, run)) > 60 * life,  # type: ignore[misc]
                    "rows of this life arrive",
                )
                if life == 2:
                    process.send_signal(signal.SIGTERM)
                    process.wait(DEADLINE_S)
        owner.stdin.close()
        assert owner.wait(DEADLINE_S) == 0
    assert losses(server, run) == [float(step) for step in range(300)]
    history = server.history(run)
    assert [row["mine"] for row in history if "mine" in row] == [0, 1, 2]
    assert (server.run(run).complete, server.run(run).exit_code) == (True, 0)
