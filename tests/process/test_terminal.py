"""``otel-rl runs --watch`` and the live line of ``otel-rl run``, in a terminal and without one."""

import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from otel_rl.bridge.journal.log import Log
from otel_rl.bridge.journal.runs import Commit, RunStore
from otel_rl.bridge.journal.sqlite import SqliteJournal
from otel_rl.bridge.journal.state import encode_keys
from otel_rl.diagnose.history.records import Facts, RowFacts, SpanFacts
from otel_rl.records import ExperimentKey, KeySpec, RoleStanding, Row
from tests.journals.small_run import LIVE, Life, begin, start_ns
from tests.process.commands import OTEL_RL, clean_environment, otel_rl_here
from tests.support.slow import slow_after
from tests.support.terminal import Terminal

pytestmark = pytest.mark.process

S = 1_000_000_000
RUN = ExperimentKey("grpo", "one")

# It prints as programs do: more lines than the screen has, a progress bar, an unfinished line.
PROGRAM = """
import pathlib, sys, time
for n in range(40):
    print("line", n, flush=True)
print("half", end="\\rfull", flush=True)
while not pathlib.Path("go").exists():
    time.sleep(0.05)
print(" end", flush=True)
for n in range(40, 60):
    print("line", n, flush=True)
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The directory of a bridge with a run of ten steps, two a second, and one of none."""
    journal = SqliteJournal(tmp_path)
    store = RunStore(journal)
    rows = [
        RowFacts(step, step * S // 2, {"reward": step / 10, "dropped": 3.0}) for step in range(10)
    ]
    facts = Facts(1, 9, rows=rows)
    keys = [
        KeySpec("reward", "rl.reward.mean"),
        KeySpec("dropped", "otel_rl.bridge.samples.dropped"),
    ]
    store.commit([Commit(ExperimentKey("ppo", "two"), [], 0, b"")])
    store.commit(
        [
            Commit(
                RUN,
                [Row(0, 9, 1, {"x": 1.0})],
                1,
                b"",
                added={Log.HISTORY: (1, facts.encode()), Log.KEYS: (0, encode_keys(keys))},
                roles={"trainer": RoleStanding(4, 3, 0, None)},
                step=9,
            )
        ]
    )
    journal.close()
    return tmp_path


def watch(data: Path, *run: str, rows: int = 24, columns: int = 100) -> Terminal:
    command = [*OTEL_RL, "runs", *run, "--watch", "--data", str(data)]
    environment = clean_environment(data)
    return Terminal(command, cwd=data, environment=environment, rows=rows, columns=columns)


def test_the_watched_table_fits_the_terminal_and_leaves_it_as_it_was(data: Path) -> None:
    with watch(data) as terminal:
        rows = terminal.until(
            lambda rows: rows[0].startswith("RUN") and rows[2].startswith("ppo/two")
        )
        # No bridge has the journal, so nobody knows which of its workers live.
        shown = ["grpo/one", "interrupted", "-", "9", "2", "0.9", "?/4", "-"]
        assert rows[1].split()[: len(shown)] == shown
        assert (
            rows[4]
            == "grpo/one: interrupted, step 9  2 steps/s  reward 0.9  workers ?/4  dropped 3"
        )
        terminal.resize(24, 60)  # what does not fit is left out, not wrapped
        rows = terminal.until(lambda rows: rows[0].endswith("WORKERS"))
        assert rows[0].split() == ["RUN", "STATE", "VERDICT", "STEP", "REWARD", "WORKERS"]
        terminal.resize(10, 120)
        terminal.until(lambda rows: "GOODPUT" in rows[0])
        terminal.type(b"\x03")
        assert terminal.status() == 0
        left = terminal.raw.rindex(b"\x1b[?1049l")  # to the screen of before
        assert terminal.raw.rindex(b"\x1b[?1049h") < left


WORKERS = 1_000
SLOW = "trainer/777"


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a bridge with a run of a thousand workers, one of them slow."""
    directory = tmp_path_factory.mktemp("crowd")
    life = Life(directory)
    life.take(*(begin(LIVE, rank) for rank in range(WORKERS)), now_ns=start_ns(LIVE))
    with life.journal.read() as connection:
        (state,) = connection.execute("SELECT body FROM states").fetchone()
    spans = [
        SpanFacts(1, "trainer", "train", worker, False, 1, took_s, took_s, 0)
        for worker, took_s in [*((f"trainer/{n}", 2.0) for n in range(60)), (SLOW, 9.0)]
    ]
    history = {Log.HISTORY: (S, Facts(S, 1, spans=spans).encode())}
    life.runs.commit([Commit(LIVE, [], 0, state, added=history)])
    life.journal.close()
    return directory


def test_of_a_thousand_workers_the_slow_one_is_first_and_the_last_is_reached(crowd: Path) -> None:
    with watch(crowd, "live", rows=24, columns=80) as terminal:
        rows = terminal.until(
            lambda rows: " of 1000;" in rows[-1] and any(row.startswith(SLOW) for row in rows)
        )
        (header,) = [place for place, row in enumerate(rows) if row.startswith("WORKER ")]
        assert rows[header + 1].split()[:7] == [SLOW, "unknown", "-", "train", "9", "s", "4.5x"]
        assert rows[-1].startswith(f"1 to {22 - header} of 1000;")
        terminal.type(b"\x1b[6~")  # page down
        terminal.until(lambda rows: rows[-1].startswith(f"{23 - header} to "))
        terminal.type(b"\x1b[F")  # end
        rows = terminal.until(lambda rows: "to 1000 of 1000;" in rows[-1])
        assert rows[-2].startswith("trainer/999")
        assert rows[header].startswith("WORKER ")  # it stays
        terminal.type(b"\x1b[A")  # up
        terminal.until(lambda rows: "to 999 of 1000;" in rows[-1])
        terminal.type(b"\x1b[H")  # home
        terminal.until(lambda rows: rows[header + 1].startswith(SLOW))
        terminal.type(b"q")
        assert terminal.status() == 0
        assert b"\x1b[?1049l" in terminal.raw


@pytest.mark.slow
def test_without_colour_where_the_user_wants_none(data: Path) -> None:
    command = [*OTEL_RL, "runs", "--watch", "--data", str(data)]
    for variables, has_colour in (({}, True), ({"NO_COLOR": "1"}, False)):
        environment = clean_environment(data, **variables)
        with Terminal(command, cwd=data, environment=environment) as terminal:
            terminal.until(lambda rows: rows[2].startswith("ppo/two"))
            assert (b"\x1b[33m" in terminal.raw) == has_colour  # yellow
            terminal.type(b"q")
            assert terminal.status() == 0


def test_runs_cuts_long_names_to_the_width_of_the_terminal(data: Path) -> None:
    with closing(SqliteJournal(data)) as journal:
        for trial in ("lr-1e-6", "lr-3e-6"):
            key = ExperimentKey("a-name-that-somebody-has-made-of-every-parameter" * 5, trial)
            RunStore(journal).commit([Commit(key, [], 0, b"")])
    command = [*OTEL_RL, "runs", "--data", str(data)]
    environment = clean_environment(data)
    with Terminal(command, cwd=data, environment=environment, columns=110) as terminal:
        assert terminal.status() == 0
        lines = terminal.raw.decode().splitlines()
    assert max(map(len, lines)) <= 110
    ends = sorted(line.split()[0][-8:] for line in lines if "…" in line)
    assert ends == ["/lr-1e-6", "/lr-3e-6"]


def test_help_goes_through_the_pager_of_a_terminal(tmp_path: Path) -> None:
    command = [*OTEL_RL, "help", "glossary"]
    environment = clean_environment(tmp_path, PAGER="sed 's/^/paged: /'")
    with Terminal(command, cwd=tmp_path, environment=environment) as terminal:
        assert terminal.status() == 0
        assert terminal.raw.startswith(b"paged: # Glossary")


@pytest.mark.parametrize("options", [("--watch",), ("grpo/one",), ()])
def test_without_a_terminal_it_is_plain_text(data: Path, options: tuple[str, ...]) -> None:
    done = otel_rl_here("runs", *options, "--data", data, cwd=data)
    assert done.status == 0, done.err
    lines = done.out.splitlines()
    if options == ("grpo/one",):
        assert lines[0].startswith("grpo/one: interrupted, step 9")
    else:
        assert lines[0].split()[0] == "RUN"
        assert lines[1].startswith("grpo/one")
    assert "\x1b" not in done.out + done.err


def test_a_run_that_is_not_there_says_which_there_are(data: Path) -> None:
    done = otel_rl_here("runs", "nothing", "--data", data, cwd=data)
    assert done.status == 2
    assert "There are: grpo/one, ppo/two." in done.err


def run(directory: Path, *options: str) -> list[str]:
    program = directory / "train.py"
    program.write_text(PROGRAM)
    command = ["run", "--tracker", "jsonl", *options, "--", sys.executable, str(program)]
    return [*OTEL_RL, *command]


def test_the_live_line_stays_below_what_the_command_prints(tmp_path: Path) -> None:
    environment = clean_environment(tmp_path)
    with Terminal(run(tmp_path), cwd=tmp_path, environment=environment, rows=12) as terminal:
        rows = terminal.until(
            lambda rows: rows[-1].startswith("otel-rl: train/") and "full" in rows[-2]
        )
        assert rows[:11] == [*(f"line {n}" for n in range(30, 40)), "full"]
        terminal.resize(16, 60)
        terminal.until(lambda rows: rows[-1].startswith("otel-rl: train/"))
        (tmp_path / "go").touch()
        assert terminal.status() == 0
        said = terminal.raw.decode()
        # Without what leaves the cursor where it was, the program's own output is as it wrote it.
        own = re.sub(r"\x1b7.*?\x1b8", "", said).replace("\x1bD\x1b[A", "")
        lines = "".join(f"line {n}\r\n" for n in range(40))
        assert f"{lines}half\rfull end\r\nline 40\r\n" in own
        # At the end the whole terminal scrolls again, and the live line is gone.
        assert said.rindex("\x1b[r") > said.rindex(";15r")
        assert not any(row.startswith("otel-rl: train/") for row in terminal.screen.display)


# A generator fails, and the trainer goes on until it is told to end.
FAILING = """
import pathlib, subprocess, sys, time
import otel_rl
if "fail" in sys.argv:
    otel_rl.init(role="generator", index=1)
    otel_rl.log({"tokens": 1.0}, step=1)
    raise MemoryError("out of memory")
otel_rl.init(role="trainer")
otel_rl.log({"loss": 1.0}, step=1)
subprocess.run([sys.executable, __file__, "fail"], stderr=subprocess.DEVNULL)
while not pathlib.Path("go").exists():
    time.sleep(0.05)
"""


def test_a_warning_of_the_bridge_is_a_line_of_its_own_above_the_live_line(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(FAILING)
    command = [*OTEL_RL, "run", "--tracker", "jsonl", "--", sys.executable, str(program)]
    environment = clean_environment(tmp_path)
    with Terminal(command, cwd=tmp_path, environment=environment, columns=80) as terminal:
        rows = terminal.until(
            lambda rows: (
                rows[-1].startswith("otel-rl: ") and any("WARNING" in row for row in rows[:-1])
            )
        )
        (warning,) = [row for row in rows if "WARNING" in row]
        assert re.match(r"\d{4}-\d\d-\d\d [\d:,]+ WARNING otel_rl\.bridge", warning)
        assert "generator/1, MemoryError" in "".join(rows)
        (tmp_path / "go").touch()
        assert terminal.status() == 0


@pytest.mark.parametrize("is_terminal", slow_after(1, [True, False]))
def test_there_is_no_live_line_if_it_is_off_or_there_is_no_terminal(
    tmp_path: Path, is_terminal: bool
) -> None:
    (tmp_path / "go").touch()
    environment = clean_environment(tmp_path)
    if is_terminal:
        command = run(tmp_path, "--no-live-line")
        with Terminal(command, cwd=tmp_path, environment=environment) as terminal:
            assert terminal.status() == 0
            assert b"\x1b7" not in terminal.raw
    else:
        done = subprocess.run(
            run(tmp_path),
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            timeout=120,
            check=True,
        )
        assert b"\x1b" not in done.stdout + done.stderr


def test_ctrl_c_again_and_again_shows_no_traceback_but_that_of_the_program(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "import otel_rl, time\n"
        'otel_rl.init(role="trainer")\n'
        'otel_rl.log({"loss": 1.0}, step=0)\n'
        'print("ready", flush=True)\n'
        "time.sleep(600)\n"
    )
    environment = clean_environment(
        tmp_path,
        WANDB_API_KEY="k" * 40,
        WANDB_BASE_URL="http://127.0.0.1:9",  # so that there is something to wait for
        OTEL_RL_BRIDGE__STOP_TIMEOUT="5",
    )
    command = [*OTEL_RL, "run", "--no-live-line", "--", sys.executable, str(program)]
    with Terminal(command, cwd=tmp_path, environment=environment, columns=200) as terminal:
        terminal.until(lambda rows: "ready" in rows)
        terminal.type(b"\x03")
        terminal.until(lambda rows: any("KeyboardInterrupt" in row for row in rows))
        terminal.type(b"\x03")
        assert terminal.status() == 130  # as the command ended
        said = terminal.raw.decode()
        assert "Exception ignored" not in said
        assert said.count("Traceback") == 1
        assert "write the rest with: otel-rl finish .otel_rl/" in said
