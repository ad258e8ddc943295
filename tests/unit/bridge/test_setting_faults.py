"""What a mistake in the settings is answered: in plain words, with a way out that works."""

import json
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from otel_rl.bridge.config import BridgeSettings, load_settings
from otel_rl.errors import ConfigError
from otel_rl.setting_types import Address, fields_of

ADVISED = re.compile(r"OTEL_RL_BRIDGE__[A-Z0-9_]+(?:='.*?'(?=$|\.| ))?")

OF_THE_LIBRARY = re.compile(
    r"[Ii]nput|Value error|[Tt]uple|pattern|unable|parse|valid |instance|dictionary|expected"
)
"""Words of the library that checks the settings, and of Python."""

VALID: dict[str, object] = {
    "journal.url": "postgresql://localhost/x",
    "notify.url": "https://chat.example.com/x",
    "tls.cert": "/cert",
    "tls.key": "/key",
    "tls.client_ca": "/ca",
    "archive.enabled": True,
    "telemetry.endpoint": "http://localhost:4318",
    "tracker.max_live_runs": 5,
    "listen.health": "127.0.0.1:4339",
    "receive.default_experiment": "x",
}


def leaves(model: type[BaseModel], path: tuple[str, ...] = ()) -> Iterator[tuple[str, object]]:
    for name, field in fields_of(model).items():
        below = field.annotation
        if isinstance(below, type) and issubclass(below, BaseModel):
            yield from leaves(below, (*path, name))
        else:
            yield ".".join((*path, name)), field.get_default(call_default_factory=True)


SETTINGS = dict(leaves(BridgeSettings))


def toml(path: str, value: object) -> str:
    section, _, name = path.rpartition(".")
    return f"{f'[{section}]' if section else ''}\n{name} = {json.dumps(value)}\n"


def wrong_values() -> Iterator[object]:
    """What a person may write for any setting, valid for few."""
    yield from ("", "wrong", "10 XB", -1, 1.5, 10**30, [], [{}], ["x"], True)


def error_of(file: Path | None) -> str:
    try:
        load_settings(file)
    except ConfigError as exc:
        return str(exc)
    return ""


def follow(advice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Do what a message says: unset and set the variables that it names, as it shows them."""
    for variable in re.findall(r"Unset (OTEL_RL_\w+)", advice):
        monkeypatch.delenv(variable)
    if unset := re.search(r"^(OTEL_RL_\w+): .*Unset it", advice):
        monkeypatch.delenv(unset[1])
    advised = [one for one in ADVISED.findall(advice) if not advice.startswith(f"{one}:")]
    assert advised, advice
    for one in advised:
        (word,) = shlex.split(one)
        variable, is_shown, value = word.partition("=")
        if not is_shown:
            path = variable.removeprefix("OTEL_RL_BRIDGE__").lower().replace("__", ".")
            default = VALID.get(path, SETTINGS[path])
            is_text = isinstance(default, str | Address)
            value = str(default) if is_text else json.dumps(default, default=str)
            value = value.strip('"')
        monkeypatch.setenv(variable, value)


def assert_the_way_out_works(file: Path | None, patch: pytest.MonkeyPatch) -> str:
    """Follow the advice until all is sound; the next mistake may be told after the first."""
    first = told = error_of(file)
    seen: set[str] = set()
    while told:
        assert told not in seen, f"the advice has not helped: {told}"
        seen.add(told)
        assert not OF_THE_LIBRARY.search(re.sub(r" \(got .*?\)\.", "", told)), told
        follow(told, patch)
        told = error_of(file)
    return first


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("OTEL_RL_"):
            monkeypatch.delenv(name)


@pytest.mark.parametrize("path", SETTINGS)
def test_the_way_out_of_a_wrong_setting_works_as_it_is_printed(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "bridge.toml"
    found = 0
    for value in wrong_values():
        file.write_text(toml(path, value))
        with monkeypatch.context() as patch:
            found += bool(assert_the_way_out_works(file, patch))
    assert found


@pytest.mark.parametrize("path", SETTINGS)
def test_the_way_out_of_a_wrong_variable_works_as_it_is_printed(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = f"OTEL_RL_BRIDGE__{path.upper().replace('.', '__')}"
    for value in ("wrong", "-1", "1.5", "[1]", "{}", ""):
        with monkeypatch.context() as patch:
            patch.setenv(variable, value)
            assert_the_way_out_works(None, patch)


@pytest.mark.parametrize(
    "content",
    [
        *(f"{name} = 5" for name in fields_of(BridgeSettings) if name != "data"),
        '[tls]\ncert = "/cert"',
        '[tls]\nclient_ca = "/ca"',
        "[listen]\nhttp = false",
        "[tracker]\noptions = 5",
        *(
            f"[[team]]\n{token}"
            for token in (
                "",
                "name = 'a'\nexperiments = ['a']",
                "name = 'a b'\nexperiments = ['a']\nfile = '/x'",
                "name = 'a'\nexperiments = []\nfile = '/x'",
                "name = 'a'\nexperiments = ['a*b', '']\nfile = '/x'",
                "name = 'a'\nexperiments = 'a'\nfile = '/x'",
                "name = 'a'\nexperiments = ['a']\nsha256 = ['abc']",
                "name = 'a'\nexperiments = ['a']\nfile = '/x'\nshare = 3",
                "name = 'a'\nfile = '/x'",
                "name = 'a'\ngateway = true\nfile = '/x'",
                "name = 'a'\ngateway = true\nfile = '/x'\nexperiments = ['a']",
            )
        ),
        (
            "[[team]]\nname = 'a'\nexperiments = ['a']\nfile = '/x'\nshare = 0.7\n"
            "[[team]]\nname = 'b'\nexperiments = ['b']\nfile = '/y'\nshare = 0.7\n"
        ),
        (
            "[[team]]\nname = 'a'\nexperiments = ['a*']\nfile = '/x'\n"
            "[[team]]\nname = 'b'\nexperiments = ['ab']\nfile = '/y'\n"
        ),
    ],
)
def test_the_way_out_of_a_wrong_section_works_as_it_is_printed(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "bridge.toml"
    file.write_text(content)
    is_sound = content == "stop_timeout = 5"
    assert bool(assert_the_way_out_works(file, monkeypatch)) is not is_sound


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("OTEL_RL_BRIDGE__TEAM__0__SHA256__0", "OTEL_RL_BRIDGE__TEAM='["),
        ("OTEL_RL_BRIDGE__HTTP", "OTEL_RL_BRIDGE__LISTEN__HTTP"),
        ("OTEL_RL_BRIDGE__HTTP__PORT", "OTEL_RL_BRIDGE__LISTEN__HTTP"),
        ("OTEL_RL_BRIDGE__LISTEN", "OTEL_RL_BRIDGE__LISTEN__HTTP"),
        ("OTEL_RL_BRIDGE__TLS__CRET", "OTEL_RL_BRIDGE__TLS__CERT"),
        ("OTEL_RL_BRIDGE_TLS_CERT", "OTEL_RL_BRIDGE__TLS__CERT"),
        ("OTEL_RL_BRIDGE_TLS__CERT", "OTEL_RL_BRIDGE__TLS__CERT"),
        ("OTEL_RL_BRIDGE__TLS_CERT", "OTEL_RL_BRIDGE__TLS__CERT"),
        ("OTEL_RL_BRIDGE_TEAMS", "OTEL_RL_BRIDGE__TEAM"),
        ("OTEL_RL_BRIDGE_JOURNAL_MAX_BYTE", "OTEL_RL_BRIDGE__JOURNAL__MAX_BYTES"),
        ("otel_rl_bridge_data", "OTEL_RL_BRIDGE__DATA"),
    ],
)
def test_a_misspelt_variable_is_an_error_that_says_what_was_meant(
    variable: str, meant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "x")
    told = error_of(None)
    assert told.startswith(f"{variable}: ")
    assert meant in told


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("OTEL_RL_BRIDGE_TOKEN", "x"),
        ("OTEL_RL_BRIDGE_URL", "http://bridge:4338"),
        ("OTEL_RL_BRIDGE_CPUS", "2"),
        ("OTEL_RL_BRIDGE_MASCOT", "x"),
        # What Kubernetes adds for Services named otel-rl-bridge and otel-rl-bridge-http:
        ("OTEL_RL_BRIDGE_SERVICE_HOST", "10.0.0.1"),
        ("OTEL_RL_BRIDGE_HTTP_SERVICE_PORT", "4338"),
        ("OTEL_RL_BRIDGE_HTTP_PORT", "tcp://10.0.0.1:4338"),
        ("OTEL_RL_BRIDGE_HTTP_PORT_4338_TCP_ADDR", "10.0.0.1"),
    ],
)
def test_variables_of_others_are_no_mistake(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    assert error_of(None) == ""


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("10GiB", 10 << 30),
        ("10 GiB", 10 << 30),
        ("500MB", 500_000_000),
        ("1.5gib", 3 << 29),
        ("2000000B", 2_000_000),
        ("2kB", None),
        ("2000000", 2_000_000),
        (2_000_000, 2_000_000),
    ],
)
@pytest.mark.parametrize("is_variable", [False, True])
def test_a_size_is_bytes_or_has_a_unit(
    written: object,
    found: int | None,
    *,
    is_variable: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / "bridge.toml"
    file.write_text("" if is_variable else toml("journal.max_bytes", written))
    if is_variable:
        monkeypatch.setenv("OTEL_RL_BRIDGE__JOURNAL__MAX_BYTES", str(written))
    if found is None:
        assert "journal.max_bytes: must be at least" in error_of(file)
    else:
        assert load_settings(file).journal.max_bytes == found


def test_an_error_in_a_size_shows_how_to_write_one(tmp_path: Path) -> None:
    file = tmp_path / "bridge.toml"
    file.write_text(toml("journal.max_bytes", "10 gigs"))
    assert '"10GiB"' in error_of(file)


def test_a_mistake_of_the_command_line_is_corrected_there() -> None:
    with pytest.raises(ConfigError, match=r"^tracker.name: must name .* on the command line\.$"):
        load_settings(None, {"tracker": {"name": ","}})


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("90s", 90.0),
        ("1.5 min", 90.0),
        ("90000ms", 90.0),
        ("2m", 120.0),
        ("1H", 3600.0),
        ("0.5h", 1800.0),
        ("2d", None),
        ("90", 90.0),
        (90, 90.0),
        (2.5, 2.5),
    ],
)
@pytest.mark.parametrize("is_variable", [False, True])
def test_a_time_is_seconds_or_has_a_unit(
    written: object,
    seconds: float | None,
    *,
    is_variable: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / "bridge.toml"
    file.write_text("" if is_variable else toml("rows.window", written))
    if is_variable:
        monkeypatch.setenv("OTEL_RL_BRIDGE__ROWS__WINDOW", str(written))
    if seconds is None:
        assert "rows.window: must be at most 3600" in error_of(file)
    else:
        assert load_settings(file).rows.window_s == seconds


def test_an_error_in_a_time_shows_how_to_write_one(tmp_path: Path) -> None:
    file = tmp_path / "bridge.toml"
    file.write_text(toml("rows.window", "5 seconds"))
    assert '"5s"' in error_of(file)


def test_of_a_section_as_json_and_a_part_of_it_the_part_wins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_RL_BRIDGE__ROWS__WAIT", "7s")
    monkeypatch.setenv("OTEL_RL_BRIDGE__ROWS", '{"wait": "9s", "window": "3s"}')
    rows = load_settings().rows
    assert (rows.wait_s, rows.window_s) == (7.0, 3.0)


@pytest.mark.parametrize("whole", ['{"options": null}', '{"options": "x"}'])
def test_a_part_of_what_another_variable_sets_as_a_whole_is_told(
    whole: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_RL_BRIDGE__TRACKER", whole)
    monkeypatch.setenv("OTEL_RL_BRIDGE__TRACKER__OPTIONS__PROJECT", "y")
    assert "sets a part of what another variable sets as a whole" in error_of(None)


@pytest.mark.parametrize("name", ["", "TRACKIO__", "__PROJECT", "TRACKIO__PROJECT__NAME"])
def test_a_variable_that_names_no_option_of_a_table_is_told(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = f"OTEL_RL_BRIDGE__TRACKER__OPTIONS__{name}"
    monkeypatch.setenv(variable, "y")
    text = error_of(None)
    assert text.startswith(f"{variable}: names no value of a table.")
    follow(text, monkeypatch)
    assert load_settings().tracker.options


@pytest.mark.parametrize(
    ("written", "host", "port"),
    [
        ("head:4318", "head", 4318),
        ("0.0.0.0:0", "0.0.0.0", 0),
        ("[::1]:4318", "::1", 4318),
        ("4318", "127.0.0.1", 4318),
        (4318, "127.0.0.1", 4318),
    ],
)
def test_an_address_is_host_and_port_and_written_again_as_it_was_read(
    written: object, host: str, port: int, tmp_path: Path
) -> None:
    file = tmp_path / "bridge.toml"
    file.write_text(toml("listen.grpc", written))
    listen = load_settings(file).listen
    assert listen.grpc == (host, port)
    assert load_settings(None, {"listen": listen.model_dump()}).listen == listen


def test_what_is_off_listens_nowhere(tmp_path: Path) -> None:
    file = tmp_path / "bridge.toml"
    file.write_text(toml("listen.http", "off"))
    assert load_settings(file).listen.http is None


@pytest.mark.parametrize("written", ["head", "head:", "head:65536", "", True, {"port": 1}])
def test_an_error_in_an_address_shows_how_to_write_one(written: object, tmp_path: Path) -> None:
    file = tmp_path / "bridge.toml"
    table = "{port = 1}" if isinstance(written, dict) else json.dumps(written)
    file.write_text(f"listen.http = {table}")
    told = error_of(file)
    assert told.startswith("listen.http: must be HOST:PORT, such as 127.0.0.1:4318")
    assert '"off" listens nowhere' in told


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("[tracker.options.trackio.server]\nurl = 'x'", "trackio.server: must be"),
        ("[tracker.options]\ntags = ['a', 'b']", "tags: must be"),
        ("[tracker.options.wandb]\ntags = ['a', 'b']", "wandb.tags: must be"),
    ],
)
def test_an_option_of_a_tracker_holds_no_table_and_no_list(
    content: str, told: str, tmp_path: Path
) -> None:
    file = tmp_path / "bridge.toml"
    file.write_text(content)
    assert error_of(file).startswith(f"tracker.options.{told} a text or a number")
