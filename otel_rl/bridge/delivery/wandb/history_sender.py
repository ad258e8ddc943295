"""Gives rows of numbers and text to W&B in few steps: many rows at a time, as finished records.

``run.log`` copies a row twice, looks at the type of each value, adds each to a message by itself,
copies that message twice, and waits for another thread until it is sent. wandb-core then parses
each value, looks for definitions that match its key, samples it, writes the summary of every key
after every row, and encodes the row again. For rows whose keys it has seen, all of that comes to
one record of the history for each row, and one of the summary for many rows. They are written here,
and one call of the SDK's thread sends them in their order.

What takes the records is not public. So it is used only with tested versions of W&B, if everything
that is needed is there, and ``tests/contract/test_wandb_history.py`` compares the files of both
ways. Else each row is given to ``run.log``, as is the first row with a key.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from time import time
from typing import TYPE_CHECKING, Any, Final

import pydantic_core

if TYPE_CHECKING:
    import wandb

__all__ = ["SUPPORTED", "HistorySender"]

SUPPORTED: Final = "0.31."
"""Prefix of the versions of W&B that have the interface."""

_log = logging.getLogger(__name__)

_MAX_WAITING_BYTES: Final = 1 << 20
_MAX_KNOWN_KEYS: Final = 20_000
_MAX_SHORT_VALUE: Final = 32  # bytes; any number
_OF_CORE: Final = ("_step", "_runtime")
"""Keys that wandb-core adds to a row."""

_LENGTH_DELIMITED: Final = 2  # protobuf's wire type of texts and messages


class HistorySender:
    """Rows of an opened run, on their way to W&B. One thread.

    Args:
        run: Opened.
    """

    def __init__(self, run: "wandb.Run") -> None:
        self._run = run
        self._records: _Records | None = None
        self._waiting: list[bytes] = []
        self._next_step = 0
        self._waiting_bytes = 0
        try:
            self._records = _Records(run)
        except Exception as error:  # noqa: BLE001  # a private interface may change
            _log.warning(
                "Rows are given to W&B one by one, which takes more CPU (%s: %s).",
                type(error).__name__,
                error,
            )

    def add(self, values: Mapping[str, object], step: int) -> None:
        """Add a row of numbers and text; ``flush`` sends it."""
        if self._records is None or not self._records.knows(values):
            self.flush()
            self._run.log(dict(values), step=step, commit=True)
            if self._records is not None:
                self._records.learn(values)
            return
        record = self._records.encode(values, step)
        self._waiting.append(record)
        self._waiting_bytes += len(record)
        self._next_step = step + 1
        if self._waiting_bytes >= _MAX_WAITING_BYTES:
            self.flush()

    def flush(self) -> None:
        """Send the rows that were added; returns when wandb-core's socket has taken them."""
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if waiting and self._records is not None:
            self._records.send([*waiting, self._records.summary()], self._next_step)


class _Heads(dict[int, bytes]):
    """Item of a message up to its value, by the length of the value. Made when first used.

    Args:
        item: Tag of an item.
        key: Field of the key, and tag of the value.
    """

    def __init__(self, item: bytes, key: bytes) -> None:
        super().__init__()
        self._item = item
        self._key = key

    def __missing__(self, size: int) -> bytes:
        start = self._key + _varint(size)
        head = self._item + _varint(len(start) + size) + start
        if size < _MAX_SHORT_VALUE:
            self[size] = head
        return head


class _Records:
    """Records of the history and the summary of a run, as wandb-core makes them of ``run.log``.

    Args:
        run: Opened.

    Raises:
        Exception: Of any kind, if the SDK is not as expected.
    """

    def __init__(self, run: "wandb.Run") -> None:
        import wandb
        from wandb.proto import wandb_internal_pb2, wandb_server_pb2

        if not wandb.__version__.startswith(SUPPORTED):
            raise NotImplementedError(f"W&B {wandb.__version__} was not tried")
        # Any: the generated modules declare their messages at run time, the rest is private.
        messages: Any = wandb_internal_pb2
        interface: Any = run._interface  # noqa: SLF001  # see the module
        settings: Any = run.settings
        if settings.x_history_value_encoding != "json" or wandb.patched["tensorboard"]:
            raise NotImplementedError("its values are encoded in another way")
        self._request: Any = wandb_server_pb2.ServerRequest  # type: ignore[attr-defined]
        self._run_in_loop: Callable[[Callable[[], Awaitable[None]]], None]
        self._run_in_loop = interface._asyncer.run  # noqa: SLF001
        self._client: Any = interface._client  # noqa: SLF001
        row, summary = messages.HistoryRecord, messages.SummaryRecord
        self._item = _tag(row, "item")
        self._key = _tag(messages.HistoryItem, "key")
        self._value = _tag(messages.HistoryItem, "value_json")
        of_summary = _tag(summary, "update"), *_tags(messages.SummaryItem, "key", "value_json")
        if of_summary != (self._item, self._key, self._value):
            raise NotImplementedError("its summary is encoded in another way")
        self._step = _tag(row, "step")
        self._history_step = messages.HistoryStep
        self._around_row, self._around_summary = _tags(messages.Record, "history", "summary")
        self._around = _tag(self._request, "record_publish")
        # A message that is there twice is merged: this one, of the stream, and that of the row.
        stream = messages.Record()
        interface._assign(stream)  # noqa: SLF001
        self._stream: bytes = self._request(record_publish=stream).SerializeToString()
        self._run: Any = run
        # Whole seconds of the openings before.
        self._began_s: float = self._run.start_time - self._run._start_runtime  # noqa: SLF001
        if not callable(self._client.publish) or not isinstance(self._run._local_step, int):  # noqa: SLF001
            raise NotImplementedError("it is another one")
        self._known: dict[str, _Heads] = {}
        self._last: dict[str, bytes] = {}  # since the last summary

    def knows(self, values: Mapping[str, object]) -> bool:
        """Return whether wandb-core has seen each key of a row."""
        return self._known.keys() >= values.keys()

    def learn(self, values: Mapping[str, object]) -> None:
        """Know the keys of a row that was logged."""
        if len(self._known) > _MAX_KNOWN_KEYS:
            self._known.clear()
        for key in (*values, *_OF_CORE):
            self._known[key] = _Heads(self._item, _field(self._key, key.encode()) + self._value)

    def encode(self, values: Mapping[str, object], step: int) -> bytes:
        """Return the record of a row."""
        row = {**values, "_step": step, "_runtime": time() - self._began_s}
        texts = dict(zip(row, _texts(row), strict=True))
        self._last |= texts
        number: bytes = self._history_step(num=step).SerializeToString()
        return self._framed(self._around_row, self._items(texts) + _field(self._step, number))

    def summary(self) -> bytes:
        """Return the record of the last values since the last call."""
        last, self._last = self._last, {}
        return self._framed(self._around_summary, self._items(last))

    def _items(self, texts: Mapping[str, bytes]) -> bytes:
        parts = [b""] * (2 * len(texts))
        parts[::2] = [self._known[key][len(text)] for key, text in texts.items()]
        parts[1::2] = texts.values()
        return b"".join(parts)

    def _framed(self, tag: bytes, body: bytes) -> bytes:
        return self._stream + _field(self._around, _field(tag, body))

    def send(self, requests: Sequence[bytes], next_step: int) -> None:
        """Send requests in their order. Raises what ``run.log`` raises if wandb-core is gone.

        Args:
            requests: Of rows.
            next_step: Of the row after them; the SDK puts it into names of files.
        """

        async def publish() -> None:
            for request in requests:
                await self._client.publish(_Encoded(request, self._request))

        self._run_in_loop(publish)
        self._run._local_step = next_step  # noqa: SLF001


class _Encoded:
    """Request that is sent as it is, and parsed if more than its bytes is asked for.

    Args:
        request: Serialized.
        kind: Type of the message.
    """

    def __init__(self, request: bytes, kind: Any) -> None:
        self._request = request
        self._kind = kind

    def ByteSize(self) -> int:  # noqa: N802  # protobuf's
        return len(self._request)

    def SerializeToString(self) -> bytes:  # noqa: N802  # protobuf's
        return self._request

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kind.FromString(self._request), name)


def _texts(values: Mapping[str, object]) -> Sequence[bytes]:
    """Return each value as JSON."""
    together = pydantic_core.to_json([*values.values()], inf_nan_mode="constants")
    texts = together[1:-1].split(b",")
    if len(texts) == len(values):  # a comma within a text is one too many
        return texts
    return [pydantic_core.to_json(value, inf_nan_mode="constants") for value in values.values()]


def _tags(message: Any, *names: str) -> tuple[bytes, ...]:
    return tuple(_tag(message, name) for name in names)


def _tag(message: Any, name: str) -> bytes:
    return _varint(message.DESCRIPTOR.fields_by_name[name].number << 3 | _LENGTH_DELIMITED)


def _field(tag: bytes, body: bytes) -> bytes:
    return tag + _framed(body)


def _framed(body: bytes) -> bytes:
    return _varint(len(body)) + body


def _varint(number: int) -> bytes:
    if number < len(_SHORT):
        return _SHORT[number]
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


_SHORT: Final = tuple(bytes([number]) for number in range(128))
