"""Stored form of the key catalogue of a run: parts, one for each transaction with new keys."""

import logging
from collections.abc import Iterable, Sequence

from otel_rl.bridge.journal.state import StateRefused, compress, decode, decompress, encode
from otel_rl.records import KeySpec

__all__ = ["decode_keys", "encode_keys", "readable_keys"]

_log = logging.getLogger(__name__)


def encode_keys(keys: Iterable[KeySpec]) -> bytes:
    """Return one part."""
    return compress(encode([*keys]))


def decode_keys(body: bytes) -> Sequence[KeySpec]:
    """Undo ``encode_keys``.

    Raises:
        StateRefused: It is something else.
    """
    return decode(decompress(body), list[KeySpec])


def readable_keys(parts: Iterable[bytes]) -> Sequence[KeySpec]:
    """Return the keys of all parts, each once, without those of a part that cannot be read.

    The bridge that makes the rows counts such a part, and describes its keys again.
    """
    found: dict[str, KeySpec] = {}
    for body in parts:
        try:
            keys = decode_keys(body)
        except StateRefused as exc:
            _log.warning("A part of a run's keys in the journal is refused: %s.", exc)
            continue
        for one in keys:
            found.setdefault(one.key, one)
    return list(found.values())
