"""The digest of ``otel_rl.lineage`` as a server without otel_rl computes it, of one array."""

from hashlib import blake2b

import numpy as np

__all__ = ["digest"]


def digest(flat: bytes) -> str:
    """Return the digest of a list of one float32 array."""
    values = np.frombuffer(flat, np.float32)
    hashed = blake2b(f"0:{len(values)}\n".encode(), digest_size=8)
    if len(values) > 4096:
        values = values[:: -(-len(values) // 4096) | 1]
    bits = values.copy().view(np.uint32).astype(np.uint64)
    near = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    near[np.isnan(values)] = 0x7FC0
    hashed.update(near.astype("<u2").tobytes())
    return hashed.hexdigest()
