"""Answer of an HTTP/1.1 server to one request, read from a connection (RFC 9112).

``http.client`` reads answers, too: it imports ``email`` and ``ssl``, 2 MB that most workers have no
other use for, and bounds neither the time nor the bytes of an answer.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

__all__ = ["Answer", "AnswerStream", "BrokenAnswer", "read_answer"]

_CONTINUE_TO: Final = 200  # statuses below are interim
_WITHOUT_BODY: Final = frozenset({204, 304})


class BrokenAnswer(Exception):
    """The bytes are no complete answer."""


class Answer(NamedTuple):
    """Answer to a request.

    Attributes:
        status: Of HTTP.
        reason: Text behind the status.
        headers: By lower-case name. Values of one name are joined by commas.
        body: None if it broke off.
        failure: How it broke off.
        keeps_alive: True if the connection takes another request.
    """

    status: int
    reason: str
    headers: dict[str, str]
    body: bytes | None
    failure: str = ""
    keeps_alive: bool = False


class AnswerStream:
    """Buffered bytes of a connection.

    Args:
        receive: Returns the next bytes, none at the end. May raise.
    """

    def __init__(self, receive: Callable[[], bytes]) -> None:
        self._receive = receive
        self._buffer = b""

    def line(self) -> bytes:
        """Return the bytes before the end of the line.

        Raises:
            BrokenAnswer: The stream ends before.
        """
        pieces = [self._buffer]
        while b"\n" not in pieces[-1]:
            pieces.append(self._more())
        found, _, self._buffer = b"".join(pieces).partition(b"\n")
        return found.removesuffix(b"\r")

    def exactly(self, length: int) -> bytes:
        """Return as many bytes.

        Raises:
            BrokenAnswer: The stream ends before.
        """
        pieces, missing = [self._buffer], length - len(self._buffer)
        while missing > 0:
            pieces.append(self._more())
            missing -= len(pieces[-1])
        found = b"".join(pieces)
        self._buffer = found[length:]
        return found[:length]

    def rest(self) -> bytes:
        """Return all bytes up to the end."""
        pieces = [self._buffer]
        while piece := self._receive():
            pieces.append(piece)
        self._buffer = b""
        return b"".join(pieces)

    @property
    def has_more(self) -> bool:
        """Report whether bytes were received that nothing has asked for."""
        return bool(self._buffer)

    def _more(self) -> bytes:
        piece = self._receive()
        if not piece:
            raise BrokenAnswer("the answer broke off")
        return piece


def read_answer(stream: AnswerStream) -> Answer:
    """Read the final answer to a POST; interim ones are skipped.

    Raises:
        BrokenAnswer: There is no head of an answer. A body that breaks off does not raise: the
            status stands.
        OSError, AnswerTooLong: Raised by the stream within the head.
    """
    while True:
        version, status, reason = _status(stream.line())
        headers = _headers(stream)
        if status >= _CONTINUE_TO:
            break
    options = _options(headers.get("connection", ""))
    keeps_alive = "close" not in options and (version != b"HTTP/1.0" or "keep-alive" in options)
    try:
        body, has_end = _body(stream, status, headers)
    except Exception as error:  # noqa: BLE001  # whatever the stream raises, the status stands
        failure = str(error) or type(error).__name__
        return Answer(status, reason, headers, None, failure)
    return Answer(
        status,
        reason,
        headers,
        body,
        keeps_alive=keeps_alive and has_end and not stream.has_more,
    )


def _status(line: bytes) -> tuple[bytes, int, str]:
    version, _, rest = line.partition(b" ")
    code, _, reason = rest.strip().partition(b" ")
    if not version.startswith(b"HTTP/1.") or len(code) != 3 or not code.isdigit():
        raise BrokenAnswer("the answer is no HTTP")
    return version, int(code), reason.decode("latin-1")


def _headers(stream: AnswerStream) -> dict[str, str]:
    headers: dict[str, str] = {}
    while line := stream.line():
        name, colon, value = line.decode("latin-1").partition(":")
        if not colon:
            continue  # as browsers do
        name, value = name.strip().lower(), value.strip()
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def _options(header: str) -> set[str]:
    return {option.strip().lower() for option in header.split(",")}


def _body(stream: AnswerStream, status: int, headers: dict[str, str]) -> tuple[bytes, bool]:
    """Return the body; and whether its end was known before the end of the connection."""
    if status in _WITHOUT_BODY:
        return b"", True
    coding = headers.get("transfer-encoding")
    if coding is not None:
        if coding.lower().rpartition(",")[2].strip() == "chunked":
            return _chunks(stream), "content-length" not in headers
        return stream.rest(), False
    length = headers.get("content-length")
    if length is None:
        return stream.rest(), False
    lengths = {one.strip() for one in length.split(",")}
    (one, *others) = lengths
    if others or not (one.isascii() and one.isdigit()):
        raise BrokenAnswer("the answer has no valid length")
    return stream.exactly(int(one)), True


def _chunks(stream: AnswerStream) -> bytes:
    chunks = []
    while True:
        size = stream.line().partition(b";")[0].strip()
        try:
            n_bytes = int(size, 16)
        except ValueError:
            n_bytes = -1
        if n_bytes < 0:
            raise BrokenAnswer("the answer has no valid chunks")
        if not n_bytes:
            break
        chunks.append(stream.exactly(n_bytes))
        if stream.line():
            raise BrokenAnswer("the answer has no valid chunks")
    _headers(stream)  # trailers
    return b"".join(chunks)
