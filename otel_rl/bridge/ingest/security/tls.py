"""TLS for both servers, from files that are checked before either of them listens.

With ``client_ca`` it is mutual: the handshake fails for a sender without a certificate of that
authority.
"""

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pydantic import BaseModel, ConfigDict, model_validator

from otel_rl.bridge.ingest.security.secret_file import read_secret, unreadable
from otel_rl.errors import ConfigError

if TYPE_CHECKING:
    import grpc

__all__ = ["Tls", "TlsSettings", "load_tls"]


class TlsSettings(BaseModel):
    """TLS of OTLP over HTTP and gRPC. Without ``cert`` and ``key`` there is none."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cert: Path | None = None
    """PEM file: certificate and intermediates."""

    key: Path | None = None
    """PEM file: unencrypted private key, not world-readable."""

    client_ca: Path | None = None
    """PEM file: authorities of senders' certificates (mTLS)."""

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        if (self.cert is None) != (self.key is None):
            raise ValueError("cert and key go together")
        if self.client_ca is not None and self.cert is None:
            raise ValueError("client_ca needs cert and key")
        return self


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS configuration of the two servers.

    Attributes:
        context: For HTTP.
        credentials: For gRPC.
        is_mutual: Whether senders need a certificate.
    """

    context: ssl.SSLContext
    credentials: "grpc.ServerCredentials"
    is_mutual: bool


def load_tls(settings: TlsSettings) -> Tls | None:
    """Read and check the files; None if none are set.

    Raises:
        ConfigError: Names the setting, the file and the fault.
    """
    if settings.cert is None or settings.key is None:
        return None
    certificate = _read("tls.cert", settings.cert, "CERTIFICATE")
    key = read_secret("tls.key", settings.key)
    _expect("tls.key", settings.key, key, "PRIVATE KEY")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    _checked(
        lambda: context.load_cert_chain(
            str(settings.cert),
            str(settings.key),
            password=lambda: "",  # otherwise OpenSSL prompts on the terminal
        ),
        "tls.cert, tls.key",
        f"{settings.cert} and {settings.key} are no certificate with its unencrypted key",
    )
    authorities: bytes | None = None
    if settings.client_ca is not None:
        authorities = _read("tls.client_ca", settings.client_ca, "CERTIFICATE")
        context.verify_mode = ssl.CERT_REQUIRED
        _checked(
            lambda: context.load_verify_locations(str(settings.client_ca)),
            "tls.client_ca",
            f"{settings.client_ca} holds no certificate",
        )
    import grpc  # 9 MB that a bridge without TLS and gRPC saves

    credentials = grpc.ssl_server_credentials(
        [(key, certificate)],
        root_certificates=authorities,
        require_client_auth=authorities is not None,
    )
    return Tls(context, credentials, is_mutual=authorities is not None)


def _read(setting: str, path: Path, kind: str) -> bytes:
    try:
        content = path.read_bytes()
    except (OSError, ValueError) as exc:
        raise unreadable(setting, path, exc) from exc
    _expect(setting, path, content, kind)
    return content


def _expect(setting: str, path: Path, content: bytes, kind: str) -> None:
    if f"{kind}-----".encode() not in content:
        raise ConfigError(
            f"{setting}: {path} has no {kind} in PEM.", hint="Convert it with openssl."
        )


def _checked(load: Callable[[], None], setting: str, fault: str) -> None:
    try:
        load()
    except (ssl.SSLError, OSError) as exc:
        raise ConfigError(f"{setting}: {fault} ({exc.strerror or exc}).") from exc
