"""Head of an OTLP/HTTP request, and answers in the encoding of their request."""

from enum import StrEnum
from typing import NamedTuple, Self

from google.protobuf.json_format import MessageToJson
from google.protobuf.message import Message
from starlette.responses import Response
from starlette.types import Scope

from otel_rl.bridge.ingest import body
from otel_rl.bridge.ingest.error_answers import Answer, status_message
from otel_rl.errors import MalformedRequest

__all__ = ["Media", "RequestHead", "encoded", "error_response"]


class Media(StrEnum):
    """Media types of OTLP/HTTP."""

    PROTOBUF = "application/x-protobuf"
    JSON = "application/json"


_MEDIA = {str(media): media for media in Media}


class RequestHead(NamedTuple):
    """Headers that decide how a request is read. Of a header that is repeated, the first counts.

    Attributes:
        authorization: None if absent.
        media: None if absent or of another kind.
        content_encoding: As sent, in lower case.
    """

    authorization: str | None
    media: Media | None
    content_encoding: str

    @classmethod
    def of(cls, scope: Scope) -> Self:
        """Read the headers of an ASGI scope."""
        headers = dict(reversed(scope["headers"]))
        authorization = headers.get(b"authorization")
        media = headers.get(b"content-type", b"").decode("latin-1")
        return cls(
            None if authorization is None else authorization.decode("latin-1"),
            _MEDIA.get(media) or _MEDIA.get(media.partition(";")[0].strip().lower()),
            headers.get(b"content-encoding", b"").decode("latin-1").strip().lower(),
        )

    @property
    def encoding(self) -> str:
        """Return one of ``body.ENCODINGS``.

        Raises:
            MalformedRequest: It is another one.
        """
        encoding = self.content_encoding or "identity"
        if encoding not in body.ENCODINGS:
            msg = f"Content-Encoding {encoding[:40]!r} is not known."
            raise MalformedRequest(msg, hint=f"Use one of {', '.join(body.ENCODINGS)}.")
        return encoding


def encoded(media: Media, message: Message, *, status_code: int = 200) -> Response:
    """Return a message as an answer."""
    if media is Media.PROTOBUF:
        content = message.SerializeToString()
    else:
        content = MessageToJson(message, indent=None).encode()
    # A Response with a media_type appends a charset to some; these two are sent unchanged.
    return Response(content, status_code=status_code, headers={"content-type": str(media)})


def error_response(
    media: Media | None, answer: Answer, message: str, *, retry_after_s: int
) -> Response:
    """Return the answer to a request that ended in an error."""
    status = status_message(answer, message, retry_after_s=retry_after_s)
    # A request without a media type comes from a browser or curl.
    response = encoded(media or Media.JSON, status, status_code=answer.http)
    if answer.is_retryable:
        response.headers["retry-after"] = str(retry_after_s)
    if answer.http == 401:
        response.headers["www-authenticate"] = "Bearer"
    return response
