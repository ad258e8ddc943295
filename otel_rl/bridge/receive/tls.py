"""TLS for both servers, from files that are checked before either of them listens.

With ``client_ca`` TLS is mutual: the handshake fails for a sender without a certificate of that
authority.
"""

import ipaddress
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pydantic import BaseModel, ConfigDict, model_validator

from otel_rl.bridge.private_files import read_secret, unreadable
from otel_rl.errors import ConfigError

if TYPE_CHECKING:
    import grpc


class TlsSettings(BaseModel):
    """TLS settings of OTLP over HTTP and gRPC. Without ``cert`` and ``key`` there is no TLS."""

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
class _Files:
    certificate: bytes
    key: bytes = field(repr=False)
    authorities: bytes | None
    context: ssl.SSLContext


class Tls:
    """TLS of the two servers. Connections begun after ``use`` get the files that it was given.

    Args:
        cert: See ``TlsSettings``.
        key: See ``TlsSettings``.
        client_ca: See ``TlsSettings``.

    Attributes:
        context: SSL context of the HTTP server.
        credentials: Credentials of the gRPC server.
        is_mutual: Whether senders need a certificate.

    Raises:
        ConfigError: A file cannot be used. The error names the setting, the file and the fault.
    """

    def __init__(self, cert: Path, key: Path, client_ca: Path | None) -> None:
        import grpc  # 9 MB that a bridge without TLS and gRPC saves

        self._paths = (cert, key, client_ca)
        self._files = self.read()
        self.is_mutual = client_ca is not None
        self.context = self._files.context
        self.context.sni_callback = self._choose  # called for senders without SNI, too
        self.credentials: grpc.ServerCredentials = grpc.dynamic_ssl_server_credentials(
            self._configuration(), self._configuration, require_client_authentication=self.is_mutual
        )

    def read(self) -> _Files:
        """Read and check the files.

        Raises:
            ConfigError: A file cannot be used. The error names the setting, the file and the fault.
        """
        return _load(*self._paths)

    def use(self, files: _Files) -> None:
        self._files = files

    def _choose(
        self, connection: ssl.SSLSocket | ssl.SSLObject, _name: str | None, _: ssl.SSLContext
    ) -> None:
        connection.context = self._files.context

    def _configuration(self) -> "grpc.ServerCertificateConfiguration":
        import grpc

        files = self._files
        return grpc.ssl_server_certificate_configuration(
            [(files.key, files.certificate)], root_certificates=files.authorities
        )


def load_tls(settings: TlsSettings) -> Tls | None:
    """Read and check the files; None if none are set.

    Raises:
        ConfigError: A file cannot be used. The error names the setting, the file and the fault.
    """
    if settings.cert is None or settings.key is None:
        return None
    return Tls(settings.cert, settings.key, settings.client_ca)


def _load(cert: Path, key: Path, client_ca: Path | None) -> _Files:
    certificate = _read("tls.cert", cert, "CERTIFICATE")
    private = read_secret("tls.key", key)
    _expect("tls.key", key, private, "PRIVATE KEY")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    _checked(
        lambda: context.load_cert_chain(
            str(cert),
            str(key),
            password=lambda: "",  # otherwise OpenSSL prompts on the terminal
        ),
        "tls.cert, tls.key",
        f"{cert} and {key} are no certificate with its unencrypted key",
    )
    authorities: bytes | None = None
    if client_ca is not None:
        authorities = _read("tls.client_ca", client_ca, "CERTIFICATE")
        context.verify_mode = ssl.CERT_REQUIRED
        _checked(
            lambda: context.load_verify_locations(str(client_ca)),
            "tls.client_ca",
            f"{client_ca} holds no certificate",
        )
    return _Files(certificate, private, authorities, context)


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


def is_loopback(host: str) -> bool:
    """Return whether ``host`` is written as an address of this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listens_on_loopback(host: str) -> bool:
    """Return whether only this machine reaches a server on ``host``, which may be a name."""
    return is_loopback(host) or bool(_loopback_of(host))


def exposure(host: str, *, wants_token: bool, has_tls: bool, is_mutual: bool) -> str:
    """Return a sentence on what is wrong with a server on ``host``; empty if nothing is."""
    if is_loopback(host):
        return ""
    # As /etc/hosts has it on many machines for their own name.
    if address := _loopback_of(host):
        return (
            f"{host} is {address} on this machine, which no other machine reaches: senders there "
            f"would report to themselves. Give {_address_for_others()} instead of {host}, or "
            "localhost if all senders are here."
        )
    if is_mutual or (wants_token and has_tls):
        return ""
    if wants_token:
        return (
            f"{host} is reached from other machines and has no TLS: others on the network can read "
            "the tokens. Set tls.cert and tls.key."
        )
    return (
        f"{host} is reached from other machines and requires no token: each of them can write "
        "runs. Set team, or tls.client_ca, or put a collector with authentication in front."
    )


def _loopback_of(name: str) -> str:
    """Return the address that a server with this name listens on, if it is loopback; else ""."""
    if not name:  # all networks
        return ""
    try:
        found = socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ""
    address = str(found[0][4][0])
    return address if is_loopback(address) else ""


def _address_for_others() -> str:
    """Return the address by which other machines reach this one, or the one of all networks."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing: it only chooses a route
        except OSError:
            return "0.0.0.0"  # noqa: S104  # it is the operator who chooses
        return str(probe.getsockname()[0])
