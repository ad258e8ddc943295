"""A token, a TLS key and a W&B key that a bridge was given are nowhere but where they were put."""

import os
import signal
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from otel_rl.bridge.config import load_settings
from otel_rl.bridge.delivery.tracker import backend
from otel_rl.cli.main import main
from otel_rl.errors import ConfigError
from tests.process.commands import OTEL_RL, clean_environment, otel_rl
from tests.support.leftovers import process_of_a_command
from tests.support.otlp_requests import metrics_request
from tests.support.strays import processes_with
from tests.support.tls_files import tls_files

TOKEN = "token-" + "5ec2e7" * 6
STRANGE = "strange-" + "0b5e55ed" * 4
WANDB_KEY = "5ec2e7" * 6 + "abcd"

_MARK = "OTEL_RL_TEST_SECRETS"


@pytest.fixture
def no_process_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv(_MARK, str(tmp_path))
    yield
    for pid in processes_with(_MARK, str(tmp_path)):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def as_a_command() -> Iterator[None]:
    with process_of_a_command():
        yield


def config(directory: Path) -> Path:
    """A bridge with every kind of secret, in files as a deployment would have them."""
    secrets = directory / "secrets"
    secrets.mkdir()
    tls_files(secrets)
    (secrets / "tokens").write_text(TOKEN)
    (secrets / "tokens").chmod(0o600)
    file = directory / "bridge.toml"
    file.write_text(
        f"""
        data = "{directory}/data"
        listen.http = 0
        listen.grpc = 0
        tls.cert = "{secrets}/tls/server.pem"
        tls.key = "{secrets}/tls/server.key"
        tracker.name = "wandb"
        tracker.options.mode = "offline"

        [[team]]
        name = "team"
        experiments = ["x"]
        file = "{secrets}/tokens"
        """
    )
    return file


def tls_key(directory: Path) -> str:
    return (directory / "secrets" / "tls" / "server.key").read_text().splitlines()[1]


def holds(text: bytes | str, directory: Path) -> list[str]:
    """Which of the secrets are in ``text``."""
    raw = text if isinstance(text, bytes) else text.encode()
    secrets = {
        "token": TOKEN,
        "strange token": STRANGE,
        "TLS key": tls_key(directory),
        "W&B key": WANDB_KEY,
    }
    return [name for name, secret in secrets.items() if secret.encode() in raw]


@pytest.mark.process
@pytest.mark.usefixtures("no_process_is_left")
def test_no_log_answer_or_file_has_a_secret(tmp_path: Path) -> None:
    environment = clean_environment(
        tmp_path,
        WANDB_API_KEY=WANDB_KEY,
        OTEL_RL_LOG_LEVEL="DEBUG",
        **{_MARK: str(tmp_path)},
    )
    process = subprocess.Popen(
        [*OTEL_RL, "bridge", "--config", str(config(tmp_path))],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    said = ""
    while "OTLP/HTTP on " not in said:
        line = process.stderr.readline()
        assert line, said
        said += line
    address = said.partition("OTLP/HTTP on ")[2].partition(",")[0]
    trusted = ssl.create_default_context(cafile=str(tmp_path / "secrets" / "tls" / "ca.pem"))
    answers = []
    with httpx.Client(base_url=f"https://{address}", verify=trusted, timeout=60) as client:
        answers.append(client.get("/healthz"))
        for token in (TOKEN, STRANGE, TOKEN + "x"):
            for body in (metrics_request().SerializeToString(), b"\xff", TOKEN.encode()):
                headers = {
                    "content-type": "application/x-protobuf",
                    "authorization": f"Bearer {token}",
                }
                answers.append(client.post("/v1/metrics", content=body, headers=headers))
        answers.append(client.get("/v1/metrics", headers={"authorization": TOKEN}))
    assert [answer.status_code for answer in answers] == [
        *(200, 200, 400, 400),
        *(401, 401, 401),
        *(401, 401, 401),
        405,
    ]
    command = Path(f"/proc/{process.pid}/cmdline").read_bytes()
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err

    assert holds(said + out + err, tmp_path) == []
    assert holds(command, tmp_path) == []
    for answer in answers:
        assert holds(repr(answer.headers) + answer.text, tmp_path) == []
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.suffix == ".wandb" for path in written), "the run was not written"
    for path in written:
        if tmp_path / "secrets" not in path.parents:
            assert holds(path.read_bytes(), tmp_path) == [], path


def test_no_repr_of_the_settings_has_a_secret(tmp_path: Path) -> None:
    settings = load_settings(config(tmp_path))
    assert holds(repr(settings) + str(settings), tmp_path) == []


@pytest.mark.parametrize(
    "mistake",
    [
        f'sha256 = ["{TOKEN}"]',  # the token itself, where its digest should be
        f'sha256 = "{TOKEN}"',
        f'token = "{TOKEN}"',
        f'file = ["{TOKEN}"]',
        f'name = "{TOKEN * 3}"',
        f'experiments = "{TOKEN}"',
        f'"{TOKEN}',
    ],
)
def test_no_error_about_the_settings_repeats_what_may_be_a_token(
    tmp_path: Path, mistake: str
) -> None:
    file = tmp_path / "bridge.toml"
    file.write_text(f'[[team]]\nname = "x"\nexperiments = ["x"]\n{mistake}\n')
    with pytest.raises(ConfigError) as caught:
        load_settings(file)
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize("place", ["JOURNAL", "JOURNAL__URL", "JOURNAL__URL__PASSWORD"])
def test_neither_settings_nor_errors_show_the_password_of_a_database(
    monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setenv(f"OTEL_RL_BRIDGE__{place}", f"postgresql://user:{TOKEN}@host/database")
    try:
        said = repr(load_settings())
    except ConfigError as exc:
        said = str(exc)
    assert TOKEN not in said


def test_tokens_of_the_environment_are_digests_or_files_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = f'[{{"name": "x", "experiments": ["x"], "sha256": ["{TOKEN}"]}}]'
    monkeypatch.setenv("OTEL_RL_BRIDGE__TEAM", tokens)
    with pytest.raises(ConfigError) as caught:
        load_settings()
    assert TOKEN not in str(caught.value)
    monkeypatch.setenv("OTEL_RL_BRIDGE__TEAM", tokens.replace(TOKEN, "a" * 64))
    (token,) = load_settings().team
    assert token.sha256 == ("a" * 64,)


SECRET = "5ec2e7" * 8


@pytest.mark.parametrize(
    "mistake",
    [
        f'tracker.options.api_key = "{SECRET}"',
        f'tracker.options.WANDB_API_KEY = "{SECRET}"',
        f'tracker.options.base_url = "ftp://user:{SECRET}@host"',
        f'tls.key = "{SECRET}"',
        f'tls.key = "{SECRET}"\ntls.cert = "server.pem"',
        f'tls.cert = "x"\ntls.key = """-----BEGIN PRIVATE KEY-----\n{SECRET}"""',
        f'tls.key = ["{SECRET}"]',
        f'telemetry.endpoint = "ftp://user:{SECRET}@host"',
        f'telemetry = "http://user:{SECRET}@host"',
        f'journal.url = "mysql://user:{SECRET}@host"',
        f'tracker = {{options = ["{SECRET}"]}}',
        f'tracker = {{nmae = "x", options = {{api_key = "{SECRET}"}}}}',
        f'[[team]]\nname = "x"\nexperiments = ["x"]\nfile = "{SECRET}"',
    ],
)
@pytest.mark.parametrize("command", ["doctor", "bridge"])
def test_no_command_prints_a_secret_that_stands_in_the_settings(
    as_a_command: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    mistake: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("HTTP", "GRPC"):
        monkeypatch.setenv(f"OTEL_RL_BRIDGE__LISTEN__{name}", "0")
    file = tmp_path / "bridge.toml"
    file.write_text(mistake)
    assert main([command, "--config", str(file), "--data", str(tmp_path / "data")]) != 0
    out, err = capsys.readouterr()
    assert out + err
    assert SECRET not in out + err


def test_doctor_does_not_print_the_password_of_an_endpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://user:{SECRET}@127.0.0.1:1/")
    assert main(["doctor", "--tracker", "jsonl", "--data", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert "endpoint: http://***@127.0.0.1:1/" in out
    assert SECRET not in out + err


@pytest.mark.parametrize("mode", ["offline", "mlflow", "trackio"])
def test_the_key_reaches_no_writer_that_needs_none(mode: str) -> None:
    environ = {"WANDB_API_KEY": WANDB_KEY, "HOME": "/nonexistent", "PATH": "/bin"}
    name, attributes = ("wandb", {"mode": mode}) if mode == "offline" else (mode, {})
    environment = backend(name).environment(environ, attributes)
    assert WANDB_KEY not in environment.values()
    assert environment["PATH"] == "/bin"
    assert backend("wandb").environment(environ, {})["WANDB_API_KEY"] == WANDB_KEY


@pytest.mark.process
@pytest.mark.parametrize(
    ("name", "setting"), [("tls/server.key", "tls.key"), ("tokens", "team.0.file")]
)
def test_a_bridge_does_not_start_with_a_secret_that_everybody_can_read(
    tmp_path: Path, name: str, setting: str
) -> None:
    file = config(tmp_path)
    (tmp_path / "secrets" / name).chmod(0o644)
    done = otel_rl("bridge", "--config", file, cwd=tmp_path)
    assert done.status == 2
    assert f"otel-rl: {setting}: " in done.err
    assert "chmod o= " in done.err
    assert holds(done.out + done.err, tmp_path) == []


@pytest.mark.process
def test_a_command_with_a_bridge_of_its_own_has_no_tls_and_says_so(tmp_path: Path) -> None:
    file = config(tmp_path)
    done = otel_rl("run", "--experiment", "x", "--config", file, "--", "true", cwd=tmp_path)
    assert done.status == 2
    assert "tls.cert" in done.err
