"""Masks secrets in the arguments and lines of text that a worker sends about its start."""

import re
from collections.abc import Sequence
from typing import Final

from otel_rl.redaction import redacted
from otel_rl.worker.otlp.anyvalue import cut

__all__ = ["is_secret", "masked", "masked_lines"]

_MAX_ARGUMENT_CHARS: Final = 4_096
_MAX_ARGUMENTS: Final = 1_024

_OPTION = re.compile(r"-{1,2}([A-Za-z][\w.-]*)(=?)(.*)", re.DOTALL)
_SETTING = re.compile(r"\+{0,2}([A-Za-z_][\w./-]*)=(.*)", re.DOTALL)
# Possessive, and only from the beginning of a word: linear also in a line without any space.
_NAME_IN_LINE = re.compile(r"(?<![\w.-])([\w.-]++)[\"']?\s*+[:=]\s*+(?=\S)")
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


def masked(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a command with secrets masked.

    ``--api-key X``, ``--api-key=X``, ``wandb.key=X`` as of Hydra, and passwords in URLs.
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
    """Mask values after names like ``api_key`` in a line, and passwords in URLs."""
    shown: list[str] = []
    copied = position = 0
    while (found := _NAME_IN_LINE.search(text, position)) is not None:
        position = found.end()
        if is_secret(found[1]):
            shown += text[copied:position], _MASK
            copied = position = _end_of_line(text, position)
    return redacted("".join((*shown, text[copied:])), with_names=False)


def _end_of_line(text: str, position: int) -> int:
    end = text.find("\n", position)
    return len(text) if end < 0 else end


def is_secret(name: str) -> bool:
    """Report whether the value after a name in arguments or text is a secret."""
    return _SECRET.fullmatch(name) is not None
