"""Bounds the files that are written for a tracker, as a full disk does for them alone.

Python imports it at its start if its directory is on PYTHONPATH. A writer process gets a bound on
all its files, which the tracker's helpers inherit; in the bridge, the files that it appends to.
"""

import errno
import os
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer

_limit = Path(os.environ.get("FAULTS_FILE_LIMIT", ""))
_write = os.pwrite


def _bounded(fd: int, content: "Buffer", offset: int, /) -> int:
    try:
        most = int(_limit.read_text())
    except FileNotFoundError:
        return _write(fd, content, offset)
    if offset >= most:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    return _write(fd, memoryview(content)[: most - offset], offset)


if _limit.is_file():
    if "otel_rl.bridge.delivery.writer_main" in sys.orig_argv:
        _, _most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(_limit.read_text()), _most))
    else:
        os.pwrite = _bounded
