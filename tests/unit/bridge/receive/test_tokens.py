"""Who may write what, and what is never said or kept."""

from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from otel_rl.bridge.config import BridgeSettings
from otel_rl.bridge.counters import Refusal
from otel_rl.bridge.receive.tokens import Grant, TeamSettings, Tokens
from otel_rl.errors import ConfigError, Unauthenticated
from otel_rl.records import ExperimentKey

OLD, NEW, OTHER = "old-" + "a" * 32, "new-" + "b" * 32, "other-" + "c" * 32


def digest(token: str) -> str:
    return sha256(token.encode()).hexdigest()


def tokens(*settings: TeamSettings) -> Tokens:
    return Tokens(settings)


def of_team(*valid: str, experiments: tuple[str, ...] = ("team-*",)) -> TeamSettings:
    return TeamSettings(
        name="team", experiments=experiments, sha256=tuple(digest(token) for token in valid)
    )


def token_file(directory: Path, content: str, mode: int = 0o600) -> Path:
    path = directory / "tokens"
    path.write_text(content)
    path.chmod(mode)
    return path


def test_without_tokens_nobody_is_asked_for_one() -> None:
    open_door = tokens()
    assert not open_door.are_needed
    assert open_door.grant(None) is None
    assert open_door.grant("Bearer whatever") is None


def test_a_known_token_is_whose_it_is() -> None:
    known = tokens(
        of_team(OLD), TeamSettings(name="other", experiments=("x",), sha256=(digest(OTHER),))
    )
    assert known.are_needed
    grant = known.grant(f"Bearer {OTHER}")
    assert grant == Grant("other", ("x",))


def test_old_and_new_token_are_valid_at_once() -> None:
    known = tokens(of_team(OLD, NEW))
    assert known.grant(f"Bearer {OLD}") == known.grant(f"Bearer {NEW}")


@pytest.mark.parametrize(
    "header", [f"bearer {OLD}", f"BEARER  {OLD} ", f" Bearer {OLD}", f"Bearer%20{OLD}"]
)
def test_scheme_and_spaces_are_read_as_http_says(header: str) -> None:
    assert tokens(of_team(OLD)).grant(header) is not None


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        OLD,
        f"Basic {OLD}",
        f"Bearer {OLD}x",
        f"Bearer {OLD[:-1]}",
        f"Bearer {OLD} {OLD}",
        f"Bearer {digest(OLD)}",
        "Bearer \udcff",
        "Bearer " + "x" * 60_000,
    ],
)
def test_anything_else_is_unauthenticated(header: str | None) -> None:
    with pytest.raises(Unauthenticated, match="OTEL_EXPORTER_OTLP_HEADERS"):
        tokens(of_team(OLD)).grant(header)


def test_the_error_does_not_repeat_what_was_sent() -> None:
    with pytest.raises(Unauthenticated) as caught:
        tokens(of_team(OLD)).grant(f"Bearer {NEW}")
    assert NEW not in str(caught.value)


@pytest.mark.parametrize(
    ("patterns", "experiment", "allowed"),
    [
        (("exact",), "exact", True),
        (("exact",), "exact2", False),
        (("exact",), "exac", False),
        (("exact",), "Exact", False),
        (("team-*",), "team-", True),
        (("team-*",), "team-a", True),
        (("team-*",), "team", False),
        (("team-*",), "xteam-a", False),
        (("team-*",), "team-*", True),
        (("team-*",), "te\u0430m-a", False),  # a Cyrillic letter that looks Latin
        (("*",), "anything", True),
        (("a", "b-*"), "b-1", True),
        (("a/b",), "a", False),
    ],
)
def test_names_match_exactly_and_patterns_by_their_beginning(
    patterns: tuple[str, ...], experiment: str, allowed: bool
) -> None:
    problem = Grant("team", patterns).problem(ExperimentKey(experiment, "t"))
    assert (problem is None) == allowed
    if problem is not None:
        assert problem[0] is Refusal.NOT_ALLOWED
        assert "team" in problem[1]


@given(st.text(), st.text(min_size=1))
def test_a_pattern_allows_what_begins_with_it_and_nothing_else(prefix: str, name: str) -> None:
    prefix = prefix.replace("*", "")
    allowed = Grant("x", (prefix + "*",)).problem(ExperimentKey(name)) is None
    assert allowed == name.startswith(prefix)


def test_tokens_of_a_file_are_valid(tmp_path: Path) -> None:
    path = token_file(tmp_path, f"{OLD}\n\n  {NEW}\n")
    known = tokens(TeamSettings(name="team", experiments=("*",), file=path))
    assert known.grant(f"Bearer {OLD}")
    assert known.grant(f"Bearer {NEW}")


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("", "is empty"),
        ("\n \n", "is empty"),
        ("tiny", "token 1 of .* shorter than 16"),
        (f"{OLD}\nnot!allowed!characters!", "token 2 of .* has others"),
        (f"{OLD}\n{OLD}", "given twice"),
    ],
)
def test_a_bad_file_is_an_error_without_its_content(
    tmp_path: Path, content: str, fault: str
) -> None:
    path = token_file(tmp_path, content)
    with pytest.raises(ConfigError, match=rf"(?s)team.0.*{fault}") as caught:
        tokens(TeamSettings(name="team", experiments=("*",), file=path))
    assert not any(line in str(caught.value) for line in content.split())


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"team.0.file: .*nowhere cannot be read"):
        tokens(TeamSettings(name="team", experiments=("*",), file=tmp_path / "nowhere"))


@pytest.mark.parametrize("mode", [0o644, 0o602])
def test_a_file_that_is_open_to_everybody_is_an_error(tmp_path: Path, mode: int) -> None:
    path = token_file(tmp_path, OLD, mode)
    with pytest.raises(ConfigError, match=r"team.0.file.*chmod o= "):
        tokens(TeamSettings(name="team", experiments=("*",), file=path))


def test_one_token_for_two_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"team.1: the same token"):
        tokens(of_team(OLD), of_team(NEW, OLD))


@pytest.mark.parametrize(
    "given_settings",
    [
        {"name": "x", "experiments": ["a"]},
        {"name": "x", "experiments": [], "sha256": ["0" * 64]},
        {"name": "x", "experiments": [""], "sha256": ["0" * 64]},
        {"name": "x", "experiments": ["a*b"], "sha256": ["0" * 64]},
        {"name": "x", "experiments": ["**"], "sha256": ["0" * 64]},
        {"name": "x", "experiments": ["a"], "sha256": [OLD]},
        {"name": "x\ny", "experiments": ["a"], "sha256": ["0" * 64]},
        {"name": "x", "experiments": ["a"], "token": OLD},
    ],
)
def test_settings_that_say_nothing_or_too_much_are_errors(
    given_settings: dict[str, object],
) -> None:
    with pytest.raises(ValidationError):
        TeamSettings.model_validate(given_settings)


def test_no_repr_shows_a_token_or_its_digest(tmp_path: Path) -> None:
    path = token_file(tmp_path, NEW)
    settings = (TeamSettings(name="x", experiments=("a",), sha256=(digest(OLD),), file=path),)
    shown = repr(settings) + repr(settings[0]) + repr(vars(Tokens(settings)))
    for secret in (OLD, NEW, digest(OLD), digest(NEW)):
        assert secret not in shown


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        ("a/*", "a/b", True),
        ("a*", "a/*", True),
        ("*", "x", True),
        ("a", "a", True),
        ("a/*", "b/*", False),
        ("a", "ab", False),
        ("ab", "a", False),
    ],
)
def test_an_experiment_is_of_one_team(one: str, other: str, *, overlap: bool) -> None:
    teams = [
        TeamSettings(name=name, experiments=(pattern,), sha256=(digest(name),))
        for name, pattern in (("one", one), ("other", other))
    ]
    if overlap:
        with pytest.raises(ValidationError, match="each experiment is of one team"):
            BridgeSettings.model_validate({"team": teams})
    else:
        BridgeSettings.model_validate({"team": teams})


def test_a_token_that_only_reads_says_so() -> None:
    team = TeamSettings(
        name="team", experiments=("x",), sha256=(digest(OLD),), read_sha256=(digest(NEW),)
    )
    known = tokens(team)
    grants = [known.grant(f"Bearer {token}") for token in (OLD, NEW)]
    assert [grant and grant.may_write for grant in grants] == [True, False]
