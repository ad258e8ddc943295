"""The documentation says what the code does: its tables, links, commands and examples hold."""

import ast
import json
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest
from pydantic import BaseModel

from otel_rl.bridge.config import BridgeSettings, load_settings
from otel_rl.bridge.counters import Counter, Gauge
from otel_rl.cli import main
from otel_rl.run_id import run_id
from otel_rl.semconv.names import PHASES
from otel_rl.setting_types import fields_of
from otel_rl.worker.settings import TABLE
from tests.process.commands import clean_environment, jsonl_rows, otel_rl
from tests.support.docs_examples import anchors, blocks, examples, unrun

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
FOLDERS = (DOCS, DOCS / "tutorials", DOCS / "how-to", DOCS / "explanation")
GUIDES = [ROOT / "README.md", *(page for folder in FOLDERS for page in sorted(folder.glob("*.md")))]
EXAMPLES = dict(examples(GUIDES))
NO_WORKERS = {"trackers-0"}


def page(name: str) -> str:
    return (DOCS / f"{name}.md").read_text(encoding="utf-8")


# Lists


def topics() -> set[str]:
    return {path.stem for path in GUIDES} - {"README"}


def test_help_lists_every_page_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["help"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    assert sorted(line.split()[0] for line in lines) == sorted(topics())
    assert all(len(line.split(maxsplit=1)) == 2 for line in lines)


def test_every_page_is_in_the_wheel() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    included = build["targets"]["wheel"]["force-include"]
    pages = [path.relative_to(ROOT).as_posix() for path in [*DOCS.glob("*.md"), *FOLDERS[1:]]]
    assert included == {page: f"otel_rl/{page}" for page in pages}


@cache
def messages(path: Path) -> Sequence[str]:
    """The texts of a file that a user may see: docstrings are for who reads the code."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return [text]
    nodes = [*ast.walk(ast.parse(text))]
    documentation = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    constants = (node for node in nodes if isinstance(node, ast.Constant))
    return [str(node.value) for node in constants if id(node) not in documentation]


def test_messages_name_documentation_that_is_installed() -> None:
    package = ROOT / "otel_rl"
    files = [*package.rglob("*.py"), *package.rglob("*.js"), *package.rglob("*.html")]
    texts = [text for path in files for text in messages(path)]
    assert [text for text in texts if re.search(r"docs/[\w-]+\.md", text)] == []
    named = {topic for text in texts for topic in re.findall(r"otel-rl help ([a-z][\w-]+)", text)}
    assert len(named) > 5
    assert named - topics() == set()


_VARIES = re.compile(r"\.\.\.|:|\(\w+\)|\b(?:N|DIR|ADDRESS|HOST|PORT|NAME|wandb|\d+ s)\b")
"""What a message of the troubleshooting page has in place of what is different each time."""


def test_messages_to_look_for_are_those_of_the_code() -> None:
    texts = "".join(
        re.sub(r"%[sd]", "", text)
        for path in (ROOT / "otel_rl").rglob("*.py")
        for text in messages(path)
    )
    cells = re.findall(r"^\| (.*?) \| ", page("how-to/troubleshooting"), re.MULTILINE)
    quoted = [one for cell in cells for one in re.findall(r"`([^`]+ [^`]+)`", cell)]
    assert len(quoted) > 15
    squeezed = " ".join(texts.split())
    parts = {part.strip() for one in quoted for part in _VARIES.split(one)}
    assert {part for part in parts if part not in squeezed} == set()


def test_every_phase_is_documented() -> None:
    assert [name for name in PHASES if f"- `{name}`: " not in page("phases")] == []


def test_every_environment_variable_that_the_code_names_is_documented() -> None:
    named = {
        variable
        for part in ("worker", "cli", "bridge")
        for path in (ROOT / "otel_rl" / part).rglob("*.py")
        for variable in re.findall(r'["\'](OTEL_[A-Z_]+[A-Z])["\']', path.read_text())
    }
    documented = "".join(path.read_text(encoding="utf-8") for path in GUIDES)
    named |= {entry.variable for entry in TABLE}
    assert {name for name in named if name not in documented} <= {
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",  # documented as OTEL_EXPORTER_OTLP_METRICS_*
        "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL",
    }


# Links


def links(path: Path) -> Iterator[tuple[str, str]]:
    """(file, anchor) of every relative link, code blocks left out."""
    text = re.sub(r"(?ms)^```.*?^```", "", path.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"[a-z]+:", target):
            file, _, anchor = target.partition("#")
            yield file, anchor


def test_every_relative_link_leads_somewhere() -> None:
    broken = [
        f"{path.relative_to(ROOT)}: {file}#{anchor}"
        for path in PAGES
        for file, anchor in links(path)
        if not (path.parent / file).exists()
        or (anchor and anchor not in anchors(path.parent / file if file else path))
    ]
    assert broken == []


@pytest.mark.parametrize(
    ("heading", "room"),
    [("From a call to the socket", "worker"), ("From the socket to the tracker", "bridge")],
)
def test_the_way_of_a_value_is_told_by_files_that_are_there(heading: str, room: str) -> None:
    text = page("explanation/architecture")
    section = text.split(f"### {heading}\n")[1].split("\n#")[0]
    files = re.findall(r"`([a-z_/]+\.py)`", section)
    assert len(files) > 5
    assert [file for file in files if not (ROOT / "otel_rl" / room / file).is_file()] == []


# Shell and TOML


def command_lines() -> Iterator[list[str]]:
    for path in [*GUIDES, ROOT / "CONTRIBUTING.md"]:
        for line in "".join(blocks(path, "bash")).splitlines():
            words = shlex.split(line, comments=True)
            while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                words = words[1:]
            for separator in ("|", ">>"):  # what follows is another program, or a file
                words = words[: words.index(separator)] if separator in words else words
            if words:
                yield words


def test_shell_examples_parse() -> None:
    for words in command_lines():
        check(*words)


def check(program: str, *arguments: str) -> None:
    match program:
        case "otel-rl":
            main.command_parser(arguments[0]).parse_args(arguments[1:])
        case "make":
            makefile = (ROOT / "Makefile").read_text()
            targets = [word for word in arguments if "=" not in word]
            assert [t for t in targets if f"\n{t}:" not in makefile] == []
        case "pip":
            extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
            named = re.findall(r"\[(\w+)\]", " ".join(arguments))
            assert set(named) <= set(extras["optional-dependencies"])
        case "otelcol-contrib" | "jaeger":
            (file,) = (word for word in arguments if word.endswith(".yaml"))
            assert (ROOT / file).is_file()
        case _:
            assert program in {
                "docker",
                "export",
                "git",
                "mkdir",
                "opentelemetry-instrument",
                "python",
                "tensorboard",
                "wandb",
                ".venv/bin/python",
                ".venv/bin/towncrier",
            }


def inline_code(path: Path) -> set[str]:
    """What the sentences of a page have between backquotes."""
    text = re.sub(r"(?ms)^```.*?^```", "", path.read_text(encoding="utf-8"))
    return set(re.findall(r"`([^`\n]+)`", text))


def test_commands_and_options_in_sentences_are_those_of_the_parser() -> None:
    known = {name: main.command_parser(name).format_help() for name in main.COMMANDS}
    unknown = []
    for path in PAGES:
        for code in inline_code(path):
            command = re.match(r"(?:[A-Z_]+=\S+ )*otel-rl ([a-z]+)(.*)", code)
            if command and command[1] != "help":
                options = re.findall(r"(?<!\S)--[a-z-]+", command[2].partition(" -- ")[0])
                told = known.get(command[1], "")
                unknown += [(path.name, code) for word in ["", *options] if word not in told]
                unknown += [(path.name, code)] if not told else []
    assert unknown == []


def test_settings_and_counters_in_sentences_are_those_of_the_bridge() -> None:
    sections = {
        name: set(fields_of(field.annotation))
        for name, field in BridgeSettings.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
    }
    counted = {name.removeprefix("otel_rl.bridge.") for name in [*Counter, *Gauge]}
    settings = {f"{section}.{name}" for section, names in sections.items() for name in names}
    named = {
        (path.name, code)
        for path in GUIDES
        for code in inline_code(path)
        if re.fullmatch(rf"({'|'.join(sections)})\.[a-z_]+", code)
    }
    assert len(named) > 50
    assert {code for _, code in named} - settings - counted == {"journal.db"}


def test_toml_examples_are_settings(tmp_path: Path) -> None:
    found = [block for path in GUIDES for block in blocks(path, "toml")]
    for block in found:
        file = tmp_path / "bridge.toml"
        file.write_text(block)
        load_settings(file)
    assert found


OTHERWISE_RUN = {"five-ways"}
"""tests/process/test_five_ways.py runs the lines of this page."""


@pytest.mark.parametrize("path", sorted((DOCS / "how-to").glob("*.md")), ids=lambda path: path.stem)
def test_a_how_to_page_is_run_as_printed_or_says_what_is_not(path: Path) -> None:
    """Pages with ``console`` blocks are followed, see ``test_a_how_to_page``."""
    reasons = re.findall(
        r"^\*Not run\*[ :](.{20,})", path.read_text(encoding="utf-8"), re.MULTILINE
    )
    is_whole = not unrun(path) or path.stem in OTHERWISE_RUN
    assert len(reasons) == (0 if is_whole else 1), unrun(path)


# Python


@pytest.fixture(scope="module")
def run_of_examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of one bridge under which every example has run."""
    directory = tmp_path_factory.mktemp("examples")
    script = ROOT / "tests" / "support" / "docs_examples.py"
    command = ["run", "--tracker", "jsonl", "--experiment", "grpo-7b", "--role", "trainer", "--"]
    done = otel_rl(
        *command,
        sys.executable,
        script,
        *GUIDES,
        cwd=directory,
        # All of them end at once: on a busy machine the last export of one waits for the others'.
        env=clean_environment(
            directory,
            PYTHONPATH=str(ROOT),
            OTEL_RL_EXIT_TIMEOUT="120",
            OTEL_RL_BRIDGE__TRACKER__NAMES="framework",  # as by default
        ),
    )
    assert done.status == 0, done.err
    assert "DATA WAS LOST" not in done.err
    assert "last records" not in done.err
    return directory


def values(directory: Path, example: str) -> list[tuple[int, dict[str, float]]]:
    """(step, values) of each row that an example brought into its run, in order of time."""
    return [(row.step, row.values) for row in jsonl_rows(directory, "grpo-7b", example)]


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("name", [name for name in EXAMPLES if name not in NO_WORKERS])
def test_python_examples_run_and_report(run_of_examples: Path, name: str) -> None:
    assert values(run_of_examples, name)


@pytest.mark.slow
@pytest.mark.process
def test_the_readme_says_the_same_with_log_and_with_otel(run_of_examples: Path) -> None:
    def losses(name: str) -> list[tuple[int, float]]:
        rows = values(run_of_examples, name)
        return [(step, row["trainer/loss"]) for step, row in rows if "trainer/loss" in row]

    assert losses("README-0") == [(step, 1 / step) for step in range(1, 6)]
    assert losses("README-1") == losses("README-0")


_COMMENTED_KEY = re.compile(
    r"(?:# |, )((?:trainer|eval)/[\w/]+|loss)(?= at step|,|$)", re.MULTILINE
)


@pytest.mark.slow
@pytest.mark.process
def test_the_examples_of_the_worker_give_the_keys_of_their_comments(run_of_examples: Path) -> None:
    commented = {
        name: set(_COMMENTED_KEY.findall(code))
        for name, code in EXAMPLES.items()
        if name.startswith("worker-") and _COMMENTED_KEY.search(code)
    }
    assert len(commented) >= 4
    given = {
        name: {
            (step, key, value)
            for step, row in values(run_of_examples, name)
            for key, value in row.items()
            if key in keys
        }
        for name, keys in commented.items()
    }
    assert {name: {key for _, key, _ in given[name]} for name in given} == commented
    assert given["worker-1"] == {
        (12, "eval/score", 0.5),
        (12, "loss", 0.42),
        (12, "trainer/policy/kl/reference", 0.02),
        (13, "loss", 0.4),
    }


@pytest.mark.slow
@pytest.mark.process
def test_no_example_waits_for_a_worker_that_does_not_come(run_of_examples: Path) -> None:
    missing = {
        name: step
        for name in EXAMPLES
        if name not in NO_WORKERS
        for step, row in values(run_of_examples, name)
        if row.get("service/trainer/alive", 0) < row.get("service/trainer/expected", 0)
    }
    assert missing == {}


@pytest.mark.slow
@pytest.mark.process
def test_the_history_example_reads_a_run(run_of_examples: Path) -> None:
    scope: dict[str, object] = {}
    exec(EXAMPLES["trackers-0"], scope)
    history = scope["history"]
    assert callable(history)
    run = next(run_of_examples.rglob(f"{run_id('grpo-7b', 'README-0')}.jsonl"))
    assert list(history(run, "trainer/loss")) == [(step, 1 / step) for step in range(1, 6)]


# Frameworks


def test_frameworks_are_tried_and_seen_as_the_lab_has_written() -> None:
    """The tests of ``tests/frameworks`` write the file, and fail if they see something else."""
    page = (DOCS / "how-to" / "frameworks.md").read_text()
    lines = page.partition("| tried | seen |")[2].partition("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    shown = {name: {"tried": tried, "seen": seen} for name, _, _, tried, seen in cells}
    written = json.loads((ROOT / "tests/frameworks/tried.json").read_text())
    assert {name: shown.get(name) for name in written} == written
    seen_otherwise = {name for name in shown if name not in written}
    assert {shown[name]["seen"] for name in seen_otherwise} <= {
        "each number once at its step",  # tests/process/test_wandb_log.py
    }
