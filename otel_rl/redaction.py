"""Removes secrets and terminal control characters from text shown to people."""

import re

_REDACTED = "***"

# Greedy: also hides a password with an unescaped @ or slash.
_USERINFO = re.compile(r"://[^\s\"'<>]*@")
_QUERY = re.compile(
    r"((?:password|passwd|passphrase|secret|token|api_?key)\s*=\s*)[^&\s\"')\]}]+", re.IGNORECASE
)
_AUTHORIZATION = re.compile(r"\b(bearer|basic)(\s+|%20)[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)
_PEM = re.compile(r"-----BEGIN .*?(?:-----END [^-]*-----|\Z)", re.DOTALL)

_SECRET_NAME = re.compile(
    r"key(?!s?_?(?:bytes|chars))|token|secret|passw|passphrase|credential|authorization|header",
    re.IGNORECASE,
)


def is_secret_name(name: str) -> bool:
    """Return whether a setting or variable of this name likely holds a secret."""
    return _SECRET_NAME.search(name) is not None


def redacted(text: str, *, with_names: bool = True) -> str:
    """Remove credentials in URLs, bearer tokens and PEM blocks.

    Args:
        with_names: Whether values after ``token=``, ``password=`` and the like are removed, too.
    """
    text = _PEM.sub("(PEM)", text)
    text = _USERINFO.sub(f"://{_REDACTED}@", text)
    text = _AUTHORIZATION.sub(rf"\1\2{_REDACTED}", text)
    return _QUERY.sub(rf"\1{_REDACTED}", text) if with_names else text


def printable(text: str, *, keep: str = "") -> str:
    """Escape all characters that are not printable.

    Such are terminal escapes, line breaks, bidirectional marks and zero-width characters.

    Args:
        keep: Characters to leave as they are, such as line breaks.
    """
    if text.isprintable():
        return text
    return "".join(
        char
        if char.isprintable() or char in keep
        else char.encode("unicode_escape", "surrogatepass").decode("ascii")
        for char in text
    )


def shown(text: str) -> str:
    """Prepare several lines for a terminal or a log: remove secrets, escape control characters."""
    return printable(redacted(text), keep="\n\t")
