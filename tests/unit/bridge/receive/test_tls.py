"""TLS files are checked at start, and an error names the setting, the file and the fault."""

import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from otel_rl.bridge.receive.tls import TlsSettings, load_tls
from otel_rl.errors import ConfigError
from tests.support.tls_files import tls_files, tls_settings


@pytest.fixture
def files(tmp_path: Path) -> Path:
    return tls_files(tmp_path)


def test_without_files_there_is_no_tls() -> None:
    assert load_tls(TlsSettings()) is None


def test_sound_files_make_a_server_that_asks_for_no_certificate(files: Path) -> None:
    tls = load_tls(tls_settings(files))
    assert tls is not None
    assert not tls.is_mutual
    assert tls.context.verify_mode is ssl.CERT_NONE
    assert tls.context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_an_authority_of_clients_makes_it_mutual(files: Path) -> None:
    tls = load_tls(tls_settings(files, mutual=True))
    assert tls is not None
    assert tls.is_mutual
    assert tls.context.verify_mode is ssl.CERT_REQUIRED


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"cert": "a.pem"}, "cert and key go together"),
        ({"key": "a.key"}, "cert and key go together"),
        ({"client_ca": "a.pem"}, "client_ca needs cert and key"),
    ],
)
def test_half_of_the_settings_is_an_error(given: dict[str, str], fault: str) -> None:
    with pytest.raises(ValidationError, match=fault):
        TlsSettings.model_validate(given)


def missing(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def garbage(path: Path) -> None:
    path.write_bytes(b"\xde\xad\xbe\xef")


def torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-60])


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("damage", [missing, empty, garbage, torn, directory])
@pytest.mark.parametrize(
    ("setting", "name"),
    [("tls.cert", "server.pem"), ("tls.key", "server.key"), ("tls.client_ca", "ca.pem")],
)
def test_a_damaged_file_is_named_with_its_setting(
    files: Path, damage: Callable[[Path], None], setting: str, name: str
) -> None:
    damage(files / name)
    with pytest.raises(ConfigError, match=name) as caught:
        load_tls(tls_settings(files, mutual=True))
    assert setting in str(caught.value)


def test_a_key_of_another_certificate_is_an_error(files: Path) -> None:
    settings = TlsSettings(cert=files / "server.pem", key=files / "client.key")
    with pytest.raises(ConfigError, match=r"no certificate with its .* key"):
        load_tls(settings)


def test_an_encrypted_key_is_an_error_and_nobody_is_asked_for_its_password(files: Path) -> None:
    settings = TlsSettings(cert=files / "server.pem", key=files / "server-encrypted.key")
    with pytest.raises(ConfigError, match="unencrypted"):
        load_tls(settings)


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o606, 0o601])
def test_a_key_that_everybody_can_read_is_an_error_that_says_how_to_close_it(
    files: Path, mode: int
) -> None:
    key = files / "server.key"
    key.chmod(mode)
    with pytest.raises(ConfigError, match=rf"tls.key.*mode {mode:o}.*chmod o= "):
        load_tls(tls_settings(files))


@pytest.mark.parametrize("mode", [0o400, 0o600, 0o440, 0o640])
def test_a_key_of_its_owner_and_group_is_taken(files: Path, mode: int) -> None:
    (files / "server.key").chmod(mode)
    assert load_tls(tls_settings(files)) is not None


def test_nothing_of_the_key_is_in_a_repr_or_an_error(files: Path) -> None:
    secret = (files / "server.key").read_text().splitlines()[1]
    assert secret not in repr(load_tls(tls_settings(files)))
    (files / "server.pem").write_bytes((files / "client.pem").read_bytes())
    with pytest.raises(ConfigError) as caught:
        load_tls(tls_settings(files))
    assert secret not in str(caught.value)
