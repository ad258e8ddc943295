"""Masks secrets in the texts of a worker: arguments, console, messages of errors."""

import re
from collections.abc import Sequence
from typing import Final

from otel_rl.redaction import redacted
from otel_rl.worker.otlp.anyvalue import cut

_MAX_ARGUMENT_CHARS: Final = 4_096
_MAX_ARGUMENTS: Final = 1_024

_OPTION = re.compile(r"-{1,2}([A-Za-z][\w.-]*)(=?)(.*)", re.DOTALL)
_SETTING = re.compile(r"\+{0,2}([A-Za-z_][\w./-]*)=(.*)", re.DOTALL)
# Possessive, and only from the beginning of a word: linear also in a line without any space. The
# first group is as in "Incorrect API key provided: X".
_NAME_IN_LINE = re.compile(
    r"""(?<![\w.-])(?:((?i:(?:api|access|secret)\ (?:key|token)(?:\ \w++)?))|([\w.-]++))
        ["']?\s*+[:=]\s*+(?=\S)""",
    re.VERBOSE,
)
_MASK: Final = "***"

# Narrower than the rule for settings of the bridge: a researcher looks for ``max_tokens``,
# ``pad_token`` and ``prompt_key``.
_SECRET = re.compile(
    r"(?:^|.*[._/-])(?:"
    r"(?:access|account|api|auth|license|private|secret|signing|wandb)[._-]?key"
    r"|(?:access|api|auth|bearer|github|gitlab|hf|hub|refresh|session|wandb)[._-]?token"
    r"|secret|passw(?:or)?d|passphrase|credentials?"
    r")|(?:.*\.)?token",
    re.IGNORECASE,
)

# What looks like a key of a provider, a signed token, or a random text of both digits and letters.
_KEY = re.compile(
    r"\b(?:(?:sk|pk|hf|ghp|gho|ghs|glpat|xox[a-z]|github_pat|local)[-_][\w-]{12,}"
    r"|AKIA[0-9A-Z]{12,}|eyJ[\w-]{8,}\.[\w.-]+"
    r"|(?=[A-Za-z]*\d)(?=\d*[A-Za-z])[A-Za-z0-9]{32,})"
)


def masked(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a command with secrets masked.

    Masked are the values of ``--api-key X``, ``--api-key=X``, ``wandb.key=X`` as of Hydra, and
    passwords in URLs.
    """
    shown: list[str] = []
    follows_secret = False
    for argument in arguments[:_MAX_ARGUMENTS]:
        option, setting = _OPTION.fullmatch(argument), _SETTING.fullmatch(argument)
        if follows_secret and option is None:
            shown.append(_MASK)
            follows_secret = False
            continue
        follows_secret = False
        if option is not None and is_secret(option[1]):
            follows_secret = not option[2]
            argument = f"{argument[: option.start(3)]}{_MASK}" if option[2] else argument
        elif setting is not None and is_secret(setting[1]):
            argument = f"{argument[: setting.start(2)]}{_MASK}"
        shown.append(cut(redacted(argument, with_names=False), _MAX_ARGUMENT_CHARS))
    return shown


def masked_lines(text: str) -> str:
    """Mask the rest of a line after a name like ``api_key``, and passwords in URLs."""
    shown: list[str] = []
    copied = position = 0
    while (found := _NAME_IN_LINE.search(text, position)) is not None:
        position = found.end()
        if found[1] or is_secret(found[2]):
            shown += text[copied:position], _MASK
            copied = position = _end_of_line(text, position)
    return redacted("".join((*shown, text[copied:])), with_names=False)


def _end_of_line(text: str, position: int) -> int:
    end = text.find("\n", position)
    return len(text) if end < 0 else end


def masked_message(text: str) -> str:
    """Mask secrets in the message of an error, as in lines, and texts that look like a key."""
    return _KEY.sub(_MASK, masked_lines(text))


def is_secret(name: str) -> bool:
    """Report whether the value after a name in arguments or text is a secret."""
    return _SECRET.fullmatch(name) is not None
