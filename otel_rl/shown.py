"""Text on its way to a person's eyes: without secrets, and without what a terminal would obey."""

import re

__all__ = ["is_secret_name", "printable", "redacted", "shown"]

_REDACTED = "***"

# Greedy, so that a password with an @ or a slash in it, which should be escaped, is hidden as well.
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
    """Whether what a setting or variable of this name holds is likely a secret."""
    return _SECRET_NAME.search(name) is not None


def redacted(text: str) -> str:
    """The text without passwords and names in URLs, bearer tokens and PEM."""
    text = _PEM.sub("(PEM)", text)
    text = _USERINFO.sub(f"://{_REDACTED}@", text)
    text = _AUTHORIZATION.sub(rf"\1\2{_REDACTED}", text)
    return _QUERY.sub(rf"\1{_REDACTED}", text)


def printable(text: str, *, keep: str = "") -> str:
    """The text with everything escaped that is not printable.

    That are escapes of terminals, line breaks, marks that turn text around, characters of no width.

    Args:
        text: From anywhere.
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
    """Several lines for a terminal or a log: without secrets and escapes."""
    return printable(redacted(text), keep="\n\t")
