"""The certificates of ``tests/tls``, as a test needs them: with keys that only the owner reads."""

import shutil
from pathlib import Path

from otel_rl.bridge.receive.tls import TlsSettings

_SOURCE = Path(__file__).parents[1] / "tls"


def tls_files(directory: Path) -> Path:
    """A copy of all files. Checked out from a repository, every key is open to everybody."""
    copy = directory / "tls"
    shutil.copytree(_SOURCE, copy)
    for key in copy.glob("*.key"):
        key.chmod(0o600)
    return copy


def tls_settings(files: Path, *, mutual: bool = False) -> TlsSettings:
    return TlsSettings(
        cert=files / "server.pem",
        key=files / "server.key",
        client_ca=files / "ca.pem" if mutual else None,
    )
