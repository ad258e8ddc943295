"""Masks secrets in messages of errors, which few workers have."""

import re
from collections.abc import Mapping
from typing import Final

from otel_rl.redaction import redacted
from otel_rl.worker.events.masking import is_secret

__all__ = ["masked_message"]

_MASK: Final = "***"

# Also as in "Incorrect API key provided: X".
_NAME = re.compile(
    r"""(?<![\w.-])([A-Za-z_][\w.-]*|(?:api|access|secret)\ (?:key|token)(?:\ \w+)?)
        ["']?\s*[:=]\s*(["']?)""",
    re.IGNORECASE | re.VERBOSE,
)
_SPACED = re.compile(r"(?:api|access|secret) (?:key|token).*", re.IGNORECASE)
_VALUE: Final[Mapping[str, re.Pattern[str]]] = {
    "": re.compile(r"[^\s\"',;&)}\]]+"),
    "'": re.compile(r"[^']+"),
    '"': re.compile(r'[^"]+'),
}

# What looks like a key of a provider, a signed token, or a random text of both digits and letters.
_KEY = re.compile(
    r"\b(?:(?:sk|pk|hf|ghp|gho|ghs|glpat|xox[a-z]|github_pat|local)[-_][\w-]{12,}"
    r"|AKIA[0-9A-Z]{12,}|eyJ[\w-]{8,}\.[\w.-]+"
    r"|(?=[A-Za-z]*\d)(?=\d*[A-Za-z])[A-Za-z0-9]{32,})"
)


def masked_message(text: str) -> str:
    """Return a text, such as the message of an error, with secrets masked."""
    text = redacted(text, with_names=False)
    parts: list[str] = []
    end = 0
    for found in _NAME.finditer(text):
        follows_secret = is_secret(found[1]) or _SPACED.fullmatch(found[1]) is not None
        value = _VALUE[found[2]].match(text, found.end()) if follows_secret else None
        if value is not None and found.start() >= end:
            parts += [text[end : found.end()], _MASK]
            end = value.end()
    parts.append(text[end:])
    return _KEY.sub(_MASK, "".join(parts))
