"""Teams: the tokens, the experiments and the tracker of each.

The settings name digests or files, never a token, and only digests are kept: memory, a log line or
a ``repr`` leaks no token. Several tokens are valid at once, so a new one can be added before the
old one is removed.
"""

import hmac
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from otel_rl.bridge.counters import Refusal
from otel_rl.bridge.private_files import read_secret
from otel_rl.errors import ConfigError, Unauthenticated
from otel_rl.records import ExperimentKey
from otel_rl.setting_types import Section

# RFC 6750's alphabet. Shorter tokens can be guessed: they are stored as plain SHA-256.
_TOKEN = re.compile(rb"[A-Za-z0-9._~+/-]{16,}=*")

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")

_TOKEN_DIGITS = 8

TEAM_EXAMPLE = [{"name": "team-a", "experiments": ["team-a/*"], "file": "/run/secrets/team-a"}]

_HOW_TO_SEND = "Set OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer%20TOKEN in the sender."


_OF_A_TEAM = frozenset({"experiments", "read_file", "read_sha256", "share", "tracker"})


class TeamTracker(Section):
    """A team's own options for the bridge's trackers."""

    options: Mapping[str, str] = Field(default_factory=dict)
    """Options that replace those in ``tracker.options``, such as ``key_file``, ``entity`` and
    ``project`` of W&B."""


class TeamSettings(Section):
    """A team or a gateway. To write it needs a token: at least one of ``sha256`` and ``file``."""

    name: str
    """Name of the team, not secret. Refusals name it."""

    experiments: tuple[str, ...] = ()
    """Experiments of the team: names, or prefixes that end in ``*``. None is another team's."""

    gateway: bool = False
    """Whether it is no team but a collector that sends for all teams, and names the team of its
    data by the resource attribute ``otel_rl.team``. It has no experiments and cannot read."""

    sha256: tuple[str, ...] = Field((), repr=False)
    """SHA-256 of each token to write and read, in hexadecimal digits."""

    file: Path | None = None
    """File with the tokens to write and read, one a line, readable by its owner and group only.
    Read at start, on SIGHUP and when it changes."""

    read_sha256: tuple[str, ...] = Field((), repr=False)
    """As ``sha256``, of tokens that may only read."""

    read_file: Path | None = None
    """As ``file``, with tokens that may only read."""

    share: float | None = Field(None, gt=0, le=1)
    """Part of the bridge's bounds for the team, see docs/security.md. Unset: an equal part of
    what the others leave; everything for a single team."""

    tracker: TeamTracker = TeamTracker()
    """What the team has of its own at the trackers."""

    @field_validator("name")
    @classmethod
    def _is_a_name(cls, value: str) -> str:
        if not _NAME.fullmatch(value):
            raise ValueError("must be 1 to 64 of the characters A-Z a-z 0-9 _ . -")
        return value

    @field_validator("experiments")
    @classmethod
    def _are_patterns(cls, values: tuple[str, ...]) -> tuple[str, ...]:
        if any(not value or "*" in value[:-1] for value in values):
            raise ValueError("must be names, or beginnings of names that end in *")
        return values

    @field_validator("sha256", "read_sha256")
    @classmethod
    def _are_digests(cls, values: tuple[str, ...]) -> tuple[str, ...]:
        if not all(map(_DIGEST.fullmatch, values)):
            raise ValueError(
                "must be SHA-256 digests of 64 hexadecimal digits, as printed by "
                "`printf %s TOKEN | sha256sum`"
            )
        return values

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if not self.sha256 and self.file is None:
            raise ValueError("must have sha256 or file")
        if not self.gateway and not self.experiments:
            raise ValueError("must have experiments, or gateway = true")
        if self.gateway and self.model_fields_set & _OF_A_TEAM:
            raise ValueError(f"a gateway has no {', '.join(sorted(_OF_A_TEAM))}")
        return self


def own_team(token: str) -> TeamSettings:
    """Return the only team of a server that belongs to one command: whoever knows the token."""
    digest = sha256(token.encode()).hexdigest()
    return TeamSettings(name="own", experiments=("*",), sha256=(digest,))


def _are_apart(teams: tuple[TeamSettings, ...]) -> tuple[TeamSettings, ...]:
    names = [team.name for team in teams]
    if len(set(names)) < len(names):
        raise ValueError("has two entries of one name; write all of a team into one")
    n_teams = sum(not team.gateway for team in teams)
    if names and not n_teams:
        raise ValueError("has a gateway and no team for which it could send")
    given = [team.share for team in teams if team.share is not None]
    if sum(given) > 1 + 1e-9 or (len(given) < n_teams and sum(given) > 1 - 1e-9):
        raise ValueError(
            "the shares of the teams add up to more than 1, or leave nothing to the others"
        )
    patterns = [(team.name, pattern) for team in teams for pattern in team.experiments]
    for number, (name, pattern) in enumerate(patterns):
        for other, another in patterns[:number]:
            if name != other and _overlap(pattern, another):
                raise ValueError(
                    f"{other} and {name} would both have experiments of {another!r} and "
                    f"{pattern!r}; each experiment is of one team"
                )
    return teams


def _overlap(one: str, other: str) -> bool:
    """Return whether any name matches both patterns."""
    return _has(one, other.removesuffix("*")) or _has(other, one.removesuffix("*"))


def _has(pattern: str, name: str) -> bool:
    return pattern == name or (pattern.endswith("*") and name.startswith(pattern[:-1]))


Teams = Annotated[tuple[TeamSettings, ...], AfterValidator(_are_apart)]
"""The tables ``[[team]]``, whose names, shares and experiments go together."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Permission of a sender.

    Attributes:
        name: Name of the team or of the gateway.
        experiments: Names of experiments, or prefixes of names that end in ``*``.
        may_write: Whether the token may write; some tokens only read.
        teams: The teams for which a gateway sends, by their names; None for a team.
        token: First digits of the token's SHA-256, which tell a team's tokens apart.
    """

    name: str
    experiments: Sequence[str]
    may_write: bool = True
    teams: Mapping[str, "Grant"] | None = field(default=None, repr=False, compare=False)
    token: str = field(default="", compare=False)

    def team(self, named: str) -> str:
        """Return the team whose share a resource uses, given the team that the resource names."""
        return self.name if self.teams is None else named

    def problem(self, key: ExperimentKey, named: str = "") -> tuple[Refusal, str] | None:
        """Return reason and detail if the sender may not write ``key``, else None.

        Args:
            named: The team that the resource names; empty if it names none.
        """
        if self.teams is not None:
            if named in self.teams:
                return self.teams[named].problem(key)
            detail = f"Gateway {self.name} names no team of this bridge (got {named[:64]!r})"
            return Refusal.WRONG_TEAM, detail
        if named and named != self.name:
            return Refusal.WRONG_TEAM, f"Team {self.name} may not write as team {named[:64]!r}"
        name = key.experiment
        if any(_has(pattern, name) for pattern in self.experiments):
            return None
        return Refusal.NOT_ALLOWED, f"Team {self.name} may not write experiment {name!r}"


@dataclass(frozen=True, slots=True)
class _Known:
    digest: bytes = field(repr=False)
    grant: Grant


class Tokens:
    """Set of tokens, known by their digests. Any thread may call any method.

    Args:
        settings: The teams, with the tokens or the files that hold them.

    Attributes:
        shares: Parts of the bridge's bounds that belong to each team.

    Raises:
        ConfigError: A file cannot be used, or a token is given twice.
    """

    def __init__(self, settings: Sequence[TeamSettings]) -> None:
        self.shares = TokenShares(settings)
        self._settings = settings
        self._known = _read(settings)
        self._former: dict[bytes, str] = {}  # teams of tokens that were in a file before

    @property
    def are_needed(self) -> bool:
        return bool(self._known)

    @property
    def files(self) -> Sequence[Path]:
        named = [file for team in self._settings for file in (team.file, team.read_file)]
        return [file for file in named if file is not None]

    def read_again(self) -> None:
        """Read the files again: tokens that are not in them any more are refused from now on.

        Raises:
            ConfigError: A file cannot be used. The former tokens stay valid.
        """
        known = _read(self._settings)
        self._former |= {one.digest: one.grant.name for one in self._known}
        self._known = known

    def grant(self, authorization: str | None) -> Grant | None:
        """Return the grant of an ``Authorization`` header; None if no token is required.

        The time is the same for every token, known or not.

        Raises:
            Unauthenticated: The header has no known token.
        """
        if not self._known:
            return None
        # Some senders do not decode what is encoded in OTEL_EXPORTER_OTLP_HEADERS.
        given = (authorization or "").strip().replace("%20", " ", 1)
        scheme, _, token = given.partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise Unauthenticated("The request has no bearer token.", hint=_HOW_TO_SEND)
        digest = sha256(token.strip().encode(errors="surrogatepass")).digest()
        found: Grant | None = None
        for known in self._known:
            if hmac.compare_digest(known.digest, digest):
                found = known.grant
        if found is None:
            team = self._former.get(digest)
            whose = "" if team is None else f" any more: team {team} had it"
            raise Unauthenticated(f"The bearer token is not known{whose}.", hint=_HOW_TO_SEND)
        return found


def _read(settings: Sequence[TeamSettings]) -> Sequence[_Known]:
    found: list[_Known] = []
    teams = {one.name: Grant(one.name, one.experiments) for one in settings if not one.gateway}
    for number, team in enumerate(settings):
        setting = f"team.{number}"
        for digests, may_write in (
            (_digests(f"{setting}.file", team.sha256, team.file), True),
            (_digests(f"{setting}.read_file", team.read_sha256, team.read_file), False),
        ):
            for digest in digests:
                if any(known.digest == digest for known in found):
                    raise ConfigError(
                        f"{setting}: the same token is given twice.",
                        hint="Name all experiments of a team in one entry, and give tokens that "
                        "only read their own text.",
                    )
                speaks_for = teams if team.gateway else None
                grant = Grant(
                    team.name, team.experiments, may_write, speaks_for, digest.hex()[:_TOKEN_DIGITS]
                )
                found.append(_Known(digest, grant))
    return found


def _digests(setting: str, sha256s: Sequence[str], file: Path | None) -> Iterator[bytes]:
    yield from map(bytes.fromhex, sha256s)
    if file is None:
        return
    lines = read_secret(setting, file).split()
    if not lines:
        raise ConfigError(f"{setting}: {file} is empty.")
    for number, line in enumerate(lines, 1):
        if not _TOKEN.fullmatch(line):
            raise ConfigError(
                f"{setting}: token {number} of {file} is shorter than 16 characters or "
                "has others than A-Z a-z 0-9 - . _ ~ + / =.",
                hint="Make one with: openssl rand -hex 32",
            )
        yield sha256(line).digest()


NO_TOKEN = ""
"""Stands for the token where none is required."""


def token_of(grant: Grant | None) -> str:
    return NO_TOKEN if grant is None else grant.name


class TokenShares:
    """Shares of the teams, constant after construction. Any thread may call any method.

    Args:
        settings: The teams and gateways. Teams without a ``share`` divide the rest equally.
    """

    def __init__(self, settings: Sequence[TeamSettings]) -> None:
        teams = [one for one in settings if not one.gateway]
        self._gateways = {one.name for one in settings if one.gateway}
        self._grants = [Grant(token.name, token.experiments) for token in teams]
        names = list(dict.fromkeys(token.name for token in teams))
        given = {token.name: token.share for token in teams if token.share is not None}
        others = [name for name in names if name not in given]
        left = 1.0 - sum(given.values())
        self._parts: Mapping[str, float] = {
            **given,
            **{name: left / len(others) for name in others},
        }

    @property
    def are_needed(self) -> bool:
        return len(self._parts) > 1

    @property
    def tokens(self) -> Collection[str]:
        return self._parts.keys()

    def of(self, token: str, bound: int) -> int:
        """Return the token's part of a bound, at least 1; all of it without several tokens."""
        if not self.are_needed:
            return bound
        return max(1, int(self._parts.get(token, 0.0) * bound))

    def of_sender(self, token: str, bound: int) -> int:
        """Return a team's or a gateway's part of what is in progress, at least 1.

        A gateway's requests count against the gateway until they are read, because only then their
        team is known. Each gateway has as much as all teams together that send without a gateway.
        """
        own = bound // (1 + len(self._gateways))
        return max(1, own if token in self._gateways else self.of(token, own))

    def owner_of(self, key: ExperimentKey) -> str:
        """Return the token of an experiment that existed before tokens were recorded.

        The longest matching pattern wins, and on a tie the first one.
        """
        owner, best = NO_TOKEN, -1
        for grant in self._grants:
            for pattern in grant.experiments:
                if len(pattern) > best and Grant("", [pattern]).problem(key) is None:
                    owner, best = grant.name, len(pattern)
        return owner
