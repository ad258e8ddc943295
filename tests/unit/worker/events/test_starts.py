"""What a process says of its command, code and machine; and what it keeps to itself."""

import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from opentelemetry.sdk.resources import Resource

from otel_rl.worker.drops import DropReason, Drops
from otel_rl.worker.events import starts
from otel_rl.worker.events.masking import masked, masked_lines, masked_message
from otel_rl.worker.events.queue import EventQueue
from otel_rl.worker.events.starts import ProvenanceThread, provenance
from otel_rl.worker.guard import Guard
from tests.support.waiting import wait_until


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (["train.py", "--lr", "1e-6"], ["train.py", "--lr", "1e-6"]),
        (["--wandb-api-key", "s3cret", "--lr", "1"], ["--wandb-api-key", "***", "--lr", "1"]),
        (["--hf_token=s3cret"], ["--hf_token=***"]),
        (["trainer.secret=s3cret", "+a.b=1"], ["trainer.secret=***", "+a.b=1"]),
        (["--password", "--lr"], ["--password", "--lr"]),
        (["--db", "postgres://me:s3cret@host/db"], ["--db", "postgres://***@host/db"]),
        (["--max-tokens", "512"], ["--max-tokens", "512"]),
        (
            ["data.prompt_key=question", "--pad_token=x"],
            ["data.prompt_key=question", "--pad_token=x"],
        ),
        (["--token", "s3cret"], ["--token", "***"]),
        (["--tokenizer=qwen", "--num_tokens=7"], ["--tokenizer=qwen", "--num_tokens=7"]),
    ],
)
def test_secrets_in_arguments_are_masked(given: list[str], shown: list[str]) -> None:
    assert masked(given) == shown


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "train.py"
    program.write_text("lr = 1\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(program), raising=False)
    for command in (
        ["init", "--quiet"],
        ["remote", "add", "origin", "https://me:s3cret@example.org/grpo.git"],
        ["add", "."],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "-m", "one"],
    ):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    return tmp_path


@pytest.mark.process
def test_the_commit_and_what_differs_from_it_are_told_without_secrets(repository: Path) -> None:
    (repository / "train.py").write_text('lr = 2\napi_key = "s3cret"\n')
    told = provenance(with_code=True)
    head = subprocess.run(
        ["git", "-C", str(repository), "rev-parse", "HEAD"], stdout=subprocess.PIPE, check=True
    )
    assert told["vcs.ref.head.revision"] == head.stdout.decode().strip()
    assert told["vcs.repository.url.full"] == "https://***@example.org/grpo.git"
    diff = told["rl.worker.diff"]
    assert isinstance(diff, str)
    assert "+lr = 2" in diff
    assert "s3cret" not in str(told)
    packages = told["rl.worker.packages"]
    assert isinstance(packages, list)
    assert any(str(package).startswith("opentelemetry-sdk==") for package in packages)


@pytest.mark.process
def test_a_difference_without_end_is_cut(repository: Path) -> None:
    (repository / "train.py").write_text("".join(f"line {n} é\n" for n in range(50_000)))
    diff = provenance(with_code=True)["rl.worker.diff"]
    assert isinstance(diff, str)
    assert len(diff.encode()) < 100 << 10
    assert diff.endswith("bytes cut]\n")


@pytest.mark.process
def test_other_workers_tell_neither_the_difference_nor_the_packages(repository: Path) -> None:
    (repository / "train.py").write_text("lr = 2\n")
    told = provenance(with_code=False)
    assert "vcs.ref.head.revision" in told
    assert not {"rl.worker.diff", "rl.worker.packages"} & told.keys()


@pytest.mark.process
def test_without_git_or_a_repository_the_rest_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starts, "_directory", lambda: tmp_path)
    for path in (os.environ["PATH"], str(tmp_path)):
        monkeypatch.setenv("PATH", path)
        told = provenance(with_code=True)
        assert told["process.executable.path"] == sys.executable
        assert not any(key.startswith("vcs.") for key in told)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("+api_key = 's3cret'  # ours\n+lr = 1", "+api_key = ***\n+lr = 1"),
        ("07:25:01 WARNING:root: password: s3cret", "07:25:01 WARNING:root: password: ***"),
        ("config: {'lr': 1, 'hf_token': 's3cret'}", "config: {'lr': 1, 'hf_token': ***"),
        ("max_tokens=5, prompt_key=q, rate: 3/s", "max_tokens=5, prompt_key=q, rate: 3/s"),
        ("secret:", "secret:"),
        ("Access Token: s3cret", "Access Token: ***"),
    ],
)
def test_secrets_anywhere_in_a_line_are_masked(given: str, shown: str) -> None:
    assert masked_lines(given) == shown


@pytest.mark.parametrize(
    "text",
    ["x" * 1_000_000, "a.b-" * 250_000, "api key " * 125_000, "k=" * 500_000, " " * 1_000_000],
)
def test_a_long_line_is_masked_in_linear_time(text: str) -> None:
    begin = time.process_time()
    assert masked_lines(text) == text
    assert time.process_time() - begin < 30  # a quadratic one would take hours


MESSAGES = {
    "Error: token=abc, retry=3": "Error: token=***",
    "{'api_key': 'a b c',\n'max_tokens': 5}": "{'api_key': ***\n'max_tokens': 5}",
    "Incorrect API key provided: sk-abc. See the docs.": "Incorrect API key provided: ***",
    "401 for hf_abcdefghijklmnop": "401 for ***",
    "wandb: 0123456789abcdef0123456789abcdef01234567 is refused": "wandb: *** is refused",
    "Bearer abcdefghij refused": "Bearer *** refused",
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.10 GiB": (
        "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.10 GiB"
    ),
    "KeyError: 'model.layers.0.self_attn.q_proj.weight'": (
        "KeyError: 'model.layers.0.self_attn.q_proj.weight'"
    ),
}


@pytest.mark.parametrize(("message", "shown"), MESSAGES.items())
def test_secrets_in_the_message_of_an_error_are_masked(message: str, shown: str) -> None:
    assert masked_message(message) == shown


class Rig:
    """A thread over a real queue, and the calls that it makes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[bool] = []
        self.may_end = threading.Event()
        self.may_end.set()
        monkeypatch.setattr(starts, "provenance", self._provenance)
        monkeypatch.setattr(starts, "_EXIT_S", 90.0)  # a busy machine
        self.guard = Guard(Drops())
        self.events = EventQueue(Resource({}), self.guard)
        self.thread = ProvenanceThread(self.events, self.guard)

    def _provenance(self, *, with_code: bool) -> dict[str, str]:
        self.calls.append(with_code)
        self.may_end.wait(90.0)
        return {"process.command": "train.py"}


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    return Rig(monkeypatch)


def test_it_is_reported_once(rig: Rig) -> None:
    rig.thread.start(with_code=True)
    rig.thread.start(with_code=False)
    rig.thread.stop()
    assert (rig.calls, len(rig.events.take_all())) == ([True], 1)


def test_an_ending_process_begins_nothing(rig: Rig) -> None:
    rig.thread.stop()
    rig.thread.start(with_code=True)
    assert rig.calls == []


def test_a_forked_child_reports_its_own(rig: Rig) -> None:
    rig.thread.start(with_code=True)
    rig.thread.forget()
    rig.thread.start(with_code=False)
    wait_until(lambda: sorted(rig.calls) == [False, True], "two reports", timeout_s=90.0)
    rig.thread.stop()


def test_what_is_found_too_late_is_no_record_that_an_ended_export_lacks(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(starts, "_EXIT_S", 0.01)
    rig.may_end.clear()
    rig.thread.start(with_code=True)
    with caplog.at_level(logging.WARNING, logger="otel_rl"):
        rig.thread.stop()
    rig.may_end.set()
    wait_until(
        lambda: all(one.name != "otel-rl-provenance" for one in threading.enumerate()),
        "the end of the thread",
        timeout_s=90.0,
    )
    assert rig.events.abandon() == 0
    assert rig.guard.drops.counts() == {DropReason.SHUTDOWN: 1}
    assert "commit" in caplog.text
