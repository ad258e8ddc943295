"""Bearer tokens, and the experiments that each may write.

The settings name digests or files, never a token, and only digests are kept: memory, a log line or
a ``repr`` leaks no token. Several tokens are valid at once, so a new one can be added before the
old one is removed.
"""

import hmac
import os
import re
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from otel_rl.bridge.counters import Refusal
from otel_rl.errors import ConfigError, Unauthenticated
from otel_rl.records import ExperimentKey

__all__ = [
    "NO_TOKEN",
    "AuthSettings",
    "Grant",
    "TokenSettings",
    "TokenShares",
    "Tokens",
    "read_secret",
    "token_of",
    "unreadable",
]


def read_secret(setting: str, path: Path) -> bytes:
    """Read a file that only its owner and group can read or change.

    The group may read it: orchestrators hand secrets to non-root processes that way.

    Args:
        setting: Name of the setting, for the error.

    Raises:
        ConfigError: It cannot be read, or all users of the machine can. Never quotes its content.
    """
    try:
        with path.open("rb") as file:
            # Mode of the open file, so that it cannot be replaced in between.
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            content = file.read()
    except (OSError, ValueError) as exc:  # an invalid path
        raise unreadable(setting, path, exc) from exc
    if mode & stat.S_IRWXO:
        raise ConfigError(
            f"{setting}: {path} is open to every user of this machine (mode {mode:o}).",
            hint=f"Run: chmod o= {path}",
        )
    return content


def unreadable(setting: str, path: Path, error: OSError | ValueError) -> ConfigError:
    """Build the error for a file that cannot be read.

    Names the file only if its directory exists: the secret itself may stand where its path should.
    """
    try:
        is_path = path.parent != Path() and path.parent.is_dir()
    except (OSError, ValueError):
        is_path = False
    reason = getattr(error, "strerror", None) or "no path"
    what = f"{path} cannot be read" if is_path else "there is no file of the name that it has"
    return ConfigError(
        f"{setting}: {what}: {reason}.",
        hint="" if is_path else "Give the path of the file, with its directory.",
    )


# RFC 6750's alphabet. Shorter tokens can be guessed: they are stored as plain SHA-256.
_TOKEN = re.compile(rb"[A-Za-z0-9._~+/-]{16,}=*")

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")

_EXAMPLE = [{"name": "team-a", "experiments": ["team-a/*"], "file": "/run/secrets/team-a"}]

_HOW_TO_SEND = "Set OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer%20TOKEN in the sender."


class TokenSettings(BaseModel):
    """Tokens that may write the same experiments. At least one of ``sha256`` and ``file``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    """Name of the sender or team, not secret. Refusals name it."""

    experiments: tuple[str, ...] = Field(min_length=1)
    """Experiments that it may write: names, or prefixes that end in ``*``."""

    sha256: tuple[str, ...] = Field((), repr=False)
    """SHA-256 of each valid token, in hexadecimal digits."""

    file: Path | None = None
    """File with the valid tokens, one a line, readable by its owner and group only. Read at
    start and on SIGHUP."""

    share: float | None = Field(None, gt=0, le=1)
    """Part of the bridge's bounds for these tokens, see docs/security.md. Unset: an equal part of
    what the others leave; everything for a single entry."""

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

    @field_validator("sha256")
    @classmethod
    def _are_digests(cls, values: tuple[str, ...]) -> tuple[str, ...]:
        if not all(map(_DIGEST.fullmatch, values)):
            raise ValueError(
                "must be SHA-256 digests of 64 hexadecimal digits, as printed by "
                "`printf %s TOKEN | sha256sum`"
            )
        return values

    @model_validator(mode="after")
    def _has_a_token(self) -> Self:
        if not self.sha256 and self.file is None:
            raise ValueError("must have sha256 or file")
        return self


class AuthSettings(BaseModel):
    """Tokens and the experiments that each may write."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tokens: tuple[TokenSettings, ...] = Field((), examples=[_EXAMPLE])
    """Tables ``[[auth.tokens]]``. Empty: no token is required."""

    @model_validator(mode="after")
    def _shares_fit(self) -> Self:
        names = {token.name for token in self.tokens}
        given = {token.name: token.share for token in self.tokens if token.share is not None}
        total = sum(given.values())
        if total > 1 + 1e-9 or (len(given) < len(names) and total > 1 - 1e-9):
            raise ValueError(
                "the shares of the tokens add up to more than 1, or leave nothing to the others"
            )
        return self


@dataclass(frozen=True, slots=True)
class Grant:
    """Permission of a sender.

    Attributes:
        name: Name of the token.
        experiments: Names, or prefixes of names that end in ``*``.
    """

    name: str
    experiments: Sequence[str]

    def problem(self, key: ExperimentKey) -> tuple[Refusal, str] | None:
        """Return reason and detail if it may not write ``key``, else None."""
        name = key.experiment
        for pattern in self.experiments:
            prefix = pattern.removesuffix("*")
            if name == pattern or (prefix != pattern and name.startswith(prefix)):
                return None
        return Refusal.NOT_ALLOWED, f"Token {self.name} may not write experiment {name!r}"


@dataclass(frozen=True, slots=True)
class _Known:
    digest: bytes = field(repr=False)
    grant: Grant


class Tokens:
    """Set of tokens, known by their digests. Any thread may call any method.

    Args:
        settings: Names the tokens or the files that hold them.

    Attributes:
        shares: Parts of the bridge's bounds that belong to each token.

    Raises:
        ConfigError: A file cannot be used, or a token is given twice.
    """

    def __init__(self, settings: AuthSettings) -> None:
        self.shares = TokenShares(settings)
        self._settings = settings
        self._known = _read(settings)

    @property
    def are_needed(self) -> bool:
        """Return whether a request needs a token."""
        return bool(self._known)

    def read_again(self) -> None:
        """Read the files again: tokens that are no longer there are refused from now on.

        Raises:
            ConfigError: A file cannot be used. The former tokens stay valid.
        """
        self._known = _read(self._settings)

    def grant(self, authorization: str | None) -> Grant | None:
        """Return the grant of an ``Authorization`` header; None if no token is required.

        Takes the same time for every token, known or not.

        Raises:
            Unauthenticated: It has no known token.
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
            raise Unauthenticated("The bearer token is not known.", hint=_HOW_TO_SEND)
        return found


def _read(settings: AuthSettings) -> Sequence[_Known]:
    found: list[_Known] = []
    for number, token in enumerate(settings.tokens):
        setting = f"auth.tokens.{number}"
        grant = Grant(token.name, token.experiments)
        for digest in _digests(setting, token):
            if any(known.digest == digest for known in found):
                raise ConfigError(
                    f"{setting}: the same token is given twice.",
                    hint="Name all of its experiments in one entry.",
                )
            found.append(_Known(digest, grant))
    return found


def _digests(setting: str, token: TokenSettings) -> Iterator[bytes]:
    yield from map(bytes.fromhex, token.sha256)
    if token.file is None:
        return
    lines = read_secret(f"{setting}.file", token.file).split()
    if not lines:
        raise ConfigError(f"{setting}.file: {token.file} is empty.")
    for number, line in enumerate(lines, 1):
        if not _TOKEN.fullmatch(line):
            raise ConfigError(
                f"{setting}.file: token {number} of {token.file} is shorter than 16 characters or "
                "has others than A-Z a-z 0-9 - . _ ~ + / =.",
                hint="Make one with: openssl rand -hex 32",
            )
        yield sha256(line).digest()


NO_TOKEN = ""
"""Stands for the token where none is required."""


def token_of(grant: Grant | None) -> str:
    """Return the name of the token that a request came with."""
    return NO_TOKEN if grant is None else grant.name


class TokenShares:
    """Shares, constant after construction. Any thread may call any method.

    Args:
        settings: The tokens. Those without a ``share`` divide the rest equally.
    """

    def __init__(self, settings: AuthSettings) -> None:
        self._grants = [Grant(token.name, token.experiments) for token in settings.tokens]
        names = list(dict.fromkeys(token.name for token in settings.tokens))
        given = {token.name: token.share for token in settings.tokens if token.share is not None}
        others = [name for name in names if name not in given]
        left = 1.0 - sum(given.values())
        self._parts: Mapping[str, float] = {
            **given,
            **{name: left / len(others) for name in others},
        }

    @property
    def are_needed(self) -> bool:
        """Return whether there are several tokens."""
        return len(self._parts) > 1

    @property
    def tokens(self) -> Collection[str]:
        """The names of all tokens."""
        return self._parts.keys()

    def of(self, token: str, bound: int) -> int:
        """Return the token's part of a bound, at least 1; all of it without several tokens."""
        if not self.are_needed:
            return bound
        return max(1, int(self._parts.get(token, 0.0) * bound))

    def owner_of(self, key: ExperimentKey) -> str:
        """Return the token of an experiment that was there before tokens were recorded.

        The longest matching pattern wins, the first one on a tie.
        """
        owner, best = NO_TOKEN, -1
        for grant in self._grants:
            for pattern in grant.experiments:
                if len(pattern) > best and Grant("", [pattern]).problem(key) is None:
                    owner, best = grant.name, len(pattern)
        return owner
