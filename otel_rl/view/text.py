"""Text of senders for the page: printable, and no longer than a page can show."""

from otel_rl.redaction import printable, redacted

_MOST = 160
_PASSAGE = 20_000


def label(text: str) -> str:
    """Return a name in one line of at most 160 characters."""
    text = printable(text[: 2 * _MOST])
    return text if len(text) <= _MOST else text[: _MOST - 1] + "…"


def passage(text: str) -> str:
    """Return a longer text, such as a completion, with line breaks kept."""
    text = printable(redacted(text[:_PASSAGE], with_names=False), keep="\n\t")
    return text if len(text) < _PASSAGE else text + "…"


def line_names(keys: tuple[str, ...]) -> list[str]:
    """Return a short name for each line of a panel: its key without the common parts."""
    parts = [key.split("/") for key in keys]
    shared = 0
    while all(len(one) > shared for one in parts) and len({one[shared] for one in parts}) == 1:
        shared += 1
    ends = 0
    while (
        len(parts) > 1
        and all(len(one) > shared + ends for one in parts)
        and len({one[-1 - ends] for one in parts}) == 1
    ):
        ends += 1
    return [
        label("/".join(one[shared : len(one) - ends]) or "mean" if len(keys) > 1 else key)
        for one, key in zip(parts, keys, strict=True)
    ]


def in_order(worker: str) -> tuple[str, int, str]:
    """Return a key that sorts ``<role>/<index>`` by the number, not by its digits."""
    role, _, index = worker.rpartition("/")
    return role, int(index) if index.isdigit() and len(index) < 10 else 1 << 40, worker
