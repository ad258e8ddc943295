"""SHA-256 for names, without OpenSSL: loading it takes 0.4 MB and 2 ms of every worker."""

try:
    from _sha2 import sha256  # type: ignore[import-not-found, unused-ignore]  # CPython 3.12
except ImportError:
    try:
        from _sha256 import sha256  # type: ignore[import-not-found]  # CPython 3.11
    except ImportError:
        from hashlib import sha256

__all__ = ["sha256"]
