"""A journal that is one PostgreSQL database, for any number of bridges.

* Durable by the server's own log: ``synchronous_commit`` is on, whatever the server's default is.
* A transaction that loses against another one is run again.
* Who is idle in the middle of a transaction, or cannot be reached, is cut off by the server: a
  bridge that hangs does not block the others.
"""

import contextlib
import json
import logging
import math
import random
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from select import POLLIN, poll
from typing import Any, Final, LiteralString, TypeVar

import psycopg
from psycopg import errors
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from otel_rl.bridge.journal.interface import MADE, Connection, Cursor, Value
from otel_rl.bridge.journal.schema import APPLICATION, identity_of, statements
from otel_rl.errors import (
    ConfigError,
    JournalClosed,
    JournalFull,
    JournalGone,
    JournalUnavailable,
)

__all__ = ["PostgresJournal"]

_T = TypeVar("_T")

# What it warns of, the next caller is told.
logging.getLogger("psycopg.pool").setLevel(logging.ERROR)

_Server = psycopg.Connection[tuple[Any, ...]]

# Batches live for seconds: to compress them costs more than it saves, and what is removed has to be
# cleaned up by how much it is, not by its part of a table that is nearly empty.
_MORE_TABLES: Final = """
CREATE TABLE bridges (
  owner      TEXT NOT NULL PRIMARY KEY,
  expires_ns BIGINT NOT NULL
);
ALTER TABLE batches ALTER payload SET STORAGE EXTERNAL;
ALTER TABLE batches SET
  (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000);
ALTER TABLE waiting SET
  (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
"""

_SCHEMA_LOCK: Final = 0x6F74656C5F726C  # "otel_rl": of those who make the tables

_SHARDS: Final = 16  # as many as write to one run at the same moment, about

_CONNECTIONS: Final = 8
"""Of one bridge. PostgreSQL takes 100 by default, of all clients."""

_WAIT_S: Final = 5.0  # for a connection: a sender waits behind it
_LOOK_S: Final = 0.5  # within it, between two looks whether the server refuses connections
_CONNECT_TIMEOUT_S: Final = 3
_PROBE_S: Final = 5  # without a sign of life from the other end, and between two probes for one

_SESSION: Final = {
    "synchronous_commit": "on",
    "default_transaction_isolation": "read committed",
    "statement_timeout": "30s",
    "idle_in_transaction_session_timeout": "10s",
    "tcp_keepalives_idle": f"{_PROBE_S}s",
    "tcp_keepalives_interval": f"{_PROBE_S}s",
    "tcp_keepalives_count": "2",
}
"""Settings of the server, for our connections."""

_CONNECTION: Final[dict[str, Any]] = {
    "autocommit": True,  # reads are single statements; writes begin explicitly
    "connect_timeout": _CONNECT_TIMEOUT_S,
    "keepalives_idle": _PROBE_S,
    "keepalives_interval": _PROBE_S,
    "keepalives_count": 2,
    "tcp_user_timeout": 3 * _PROBE_S * 1000,
    "application_name": APPLICATION,
    # Of a database that knows no encoding, names would come back as bytes.
    "client_encoding": "UTF8",
}

_ENCODINGS: Final = ("UTF8", "SQL_ASCII")
"""Of databases that keep what they are given: the second looks at none of it."""

_ATTEMPTS: Final = 5  # of a transaction that loses against others
_PAUSE_S: Final = 0.02  # after the first of them, at most; twice that after the next

_MEASURED_FOR_S: Final = 1.0  # the size changes by what others do, too


# Of a refused connection, libpq gives the text alone. In another language it counts as unreachable.
_NO_DATABASE: Final = re.compile(r'database "[^"]*" does not exist')


class PostgresJournal:
    """One database. Any thread may call any method.

    Args:
        url: ``postgresql://user:password@host:port/database``, or what else libpq takes.
        max_bytes: Bound for incoming data, see ``check_room``. It may be exceeded by what all
            bridges take in a second.
        connections: How many this process may have.

    Raises:
        ConfigError: The URL is none, or another version made the tables.
        JournalUnavailable: The database cannot be reached.
    """

    def __init__(
        self, url: str, *, max_bytes: int = 10 << 30, connections: int = _CONNECTIONS
    ) -> None:
        self._max_bytes = max_bytes
        self._pool = _Pool(url, connections)
        # When each thread that writes began; each changes its own.
        self._begun: dict[int, float] = {}
        self._kept_at = -math.inf
        # _measuring guards the three below.
        self._measuring = threading.Lock()
        self._measured_at = -math.inf
        self._measured_bytes = 0
        self._taken_bytes = 0  # since then, by this process
        try:
            self._identity = self.write(_prepare)
        except BaseException as exc:
            self._pool.close()
            if isinstance(exc, JournalUnavailable | JournalFull):  # no command goes on without it
                hint = "Check the server of journal.url, then start this command again."
                raise type(exc)(exc.args[0], hint=hint) from exc
            raise

    @property
    def identity(self) -> str:
        """See ``Journal.identity``."""
        return self._identity

    @property
    def max_bytes(self) -> int:
        """The bound that it was given."""
        return self._max_bytes

    @property
    def shards(self) -> int:
        """See ``Journal.shards``."""
        return _SHARDS

    @property
    def busy_s(self) -> float:
        """See ``Journal.busy_s``."""
        begun = [*self._begun.values()]
        return max(0.0, time.monotonic() - max(min(begun), self._kept_at)) if begun else 0.0

    @property
    def hold_row(self) -> str:
        """See ``Journal.hold_row``."""
        return " FOR KEY SHARE OF runs"

    @property
    def lock_row(self) -> str:
        """See ``Journal.lock_row``."""
        return " FOR UPDATE OF runs"

    def write(self, function: Callable[[Connection], _T], /) -> _T:
        """See ``Journal.write``."""
        me = threading.get_ident()
        self._begun[me] = time.monotonic()
        try:
            result = self._write(function)
            self._kept_at = time.monotonic()
        finally:
            del self._begun[me]
        return result

    def _write(self, function: Callable[[Connection], _T]) -> _T:
        for attempt in range(_ATTEMPTS):
            with _translated_errors(), self._pool.borrowed() as borrowed:
                try:
                    # What needs no answer is sent with what comes next.
                    with borrowed.pipeline(), borrowed.transaction():
                        return function(_Connection(borrowed))
                except (
                    errors.SerializationFailure,
                    errors.DeadlockDetected,
                    errors.LockNotAvailable,
                ):
                    if attempt == _ATTEMPTS - 1:
                        raise
            time.sleep(random.uniform(0, _PAUSE_S) * (1 << attempt))  # noqa: S311  # it spreads
        raise AssertionError  # the last attempt returns or raises

    @contextlib.contextmanager
    def read(self) -> Iterator[Connection]:
        """See ``Journal.read``."""
        with _translated_errors(), self._pool.borrowed() as borrowed:
            yield _Connection(borrowed)

    def check_room(self, connection: Connection, n_bytes: int, /) -> None:
        """See ``Journal.check_room``."""
        with self._measuring:
            now = time.monotonic()
            if self._room() < n_bytes or now - self._measured_at > _MEASURED_FOR_S:
                self._measured_bytes = _size(connection)
                self._measured_at = now
                self._taken_bytes = 0
            if self._room() < n_bytes:
                raise JournalFull(
                    f"The journal has reached its bound of {self._max_bytes} bytes.",
                    hint="Raise journal.max_bytes; senders retry meanwhile.",
                )
            self._taken_bytes += n_bytes

    def size(self) -> int:
        """Bytes of the batches and of the rows made of them; tables and indexes are larger."""
        with self.read() as connection:
            return _size(connection)

    def close(self) -> None:
        """See ``Journal.close``."""
        self._pool.close()

    def _room(self) -> int:
        return self._max_bytes - self._measured_bytes - self._taken_bytes


class _Pool:
    """Bounded pool of connections, which tells why the server refuses one.

    ``psycopg_pool`` connects in the background, and its callers see only that time has passed. So
    while the server is known to refuse connections, each caller asks it first.
    """

    def __init__(self, url: str, limit: int) -> None:
        self._url = url
        self._is_refused = True  # until the first connection
        self._pool = ConnectionPool[_Server](
            url,
            kwargs=_CONNECTION,
            min_size=0,
            max_size=limit,
            open=True,
            configure=_configure,
            check=self._check,
            name="otel-rl-postgres",
            timeout=_WAIT_S,
            reconnect_timeout=0,  # whoever needs one asks again
            reconnect_failed=self._refused,
            num_workers=1,
        )

    @contextlib.contextmanager
    def borrowed(self) -> Iterator[_Server]:
        """Lend a connection to one caller; open, as far as can be known without a query."""
        connection = self._take()
        try:
            yield connection
        finally:
            self._pool.putconn(connection)

    def close(self) -> None:
        """Close the idle connections, and the others when they come back. Idempotent."""
        self._pool.close()

    def _take(self) -> _Server:
        end_s = time.monotonic() + _WAIT_S
        while True:
            if self._is_refused and not self._pool.closed:
                _connect(self._url).close()  # raises why
                self._is_refused = False
            try:
                return self._pool.getconn(timeout=_LOOK_S)
            except PoolClosed as exc:
                raise JournalClosed(
                    "The bridge is stopping.", hint="Send the batch again later."
                ) from exc
            except PoolTimeout as exc:
                if time.monotonic() >= end_s:
                    raise JournalUnavailable(
                        f"No connection to the database was free for {_WAIT_S:.0f} s.",
                        hint="It is slow or overloaded; senders retry meanwhile.",
                    ) from exc

    def _check(self, connection: _Server) -> None:
        if not _is_alive(connection):
            connection.close()
            self._pool.drain()  # as old as this one: a server that restarted ended all
            raise psycopg.OperationalError("The server has ended the connection.")

    def _refused(self, _pool: ConnectionPool[_Server]) -> None:
        self._is_refused = True


def _connect(url: str) -> _Server:
    try:
        return psycopg.connect(url, **_CONNECTION)
    except psycopg.ProgrammingError as exc:
        raise ConfigError(
            "journal.url: is not an address of a PostgreSQL database.",
            hint="It looks like postgresql://user:password@host:5432/database.",
        ) from exc


def _configure(connection: _Server) -> None:
    connection.execute(
        "SELECT set_config(key, value, false) FROM jsonb_each_text(%s::jsonb)",
        (json.dumps(_SESSION),),
    )


class _Connection:
    """Takes statements with ``?``, as SQLite does."""

    def __init__(self, connection: _Server) -> None:
        self._connection = connection

    def execute(self, sql: str, parameters: Sequence[Value] = (), /) -> Cursor:
        return self._connection.execute(_translated_sql(sql), parameters or None)

    def executemany(self, sql: str, parameters: Iterable[Sequence[Value]], /) -> object:
        with self._connection.cursor() as cursor:
            cursor.executemany(_translated_sql(sql), parameters)
        return None


@lru_cache(maxsize=256)
def _translated_sql(sql: str) -> LiteralString:
    # All statements are ours: no name or text of anybody else is in them.
    return sql.replace("?", "%s")


def _prepare(connection: Connection) -> str:
    """Make the tables, unless they are there. Returns the identity."""
    (encoding,) = connection.execute("SHOW server_encoding").fetchone()
    if encoding not in _ENCODINGS:
        raise ConfigError(
            f"journal.url: the database is in {encoding}, which cannot hold every name.",
            hint="Make one with ENCODING 'UTF8' TEMPLATE template0.",
        )
    connection.execute("SELECT pg_advisory_xact_lock(?)", (_SCHEMA_LOCK,))
    if not _columns_of_meta(connection):
        tables = statements(
            number="BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY", of_bytes="BYTEA", keyed=""
        )
        for statement in (tables + _MORE_TABLES).split(";"):
            if statement.strip():
                connection.execute(statement)
    return identity_of(
        connection,
        _columns_of_meta(connection),
        place="journal.url: the database",
        another="another database or schema",
    )


def _columns_of_meta(connection: Connection) -> set[str]:
    found = connection.execute(
        "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass('meta') AND attnum > 0"
    )
    return {name for (name,) in found}


def _size(connection: Connection) -> int:
    sizes = (
        "SELECT COALESCE((SELECT SUM(bytes) FROM waiting), 0)"  # noqa: S608  # ours
        f" + COALESCE((SELECT SUM({MADE}) FROM runs), 0)"
    )
    (size,) = connection.execute(sizes).fetchone()
    return int(size)


@contextlib.contextmanager
def _translated_errors() -> Iterator[None]:
    """Convert errors of the server to the journal's. Errors of a statement pass unchanged."""
    try:
        yield
    except (
        errors.UndefinedTable,
        errors.UndefinedColumn,
        errors.InvalidSchemaName,
        errors.InvalidCatalogName,
    ) as exc:
        raise _gone(exc) from exc
    except (errors.DiskFull, errors.OutOfMemory) as exc:
        raise JournalFull(
            f"The database has no room: {_message(exc)}.",
            hint="Give it disk space; senders retry meanwhile.",
        ) from exc
    except (
        psycopg.OperationalError,  # connections, restarts, timeouts, transactions that lost
        psycopg.InterfaceError,
        errors.IdleInTransactionSessionTimeout,
        errors.ReadOnlySqlTransaction,  # a server that was made a replica
    ) as exc:
        if _NO_DATABASE.search(_message(exc)):
            raise _gone(exc) from exc
        raise JournalUnavailable(
            f"The database does not answer: {_message(exc)}.",
            hint="Check the server of journal.url; senders retry meanwhile.",
        ) from exc


def _gone(exc: Exception) -> JournalGone:
    return JournalGone(
        f"The database or its tables were removed while the bridge was using them: {_message(exc)}."
        " Nothing more is acknowledged.",
        hint="Restore it. If it is lost, start the bridges again: senders repeat what was not "
        "acknowledged; acknowledged data that is not yet in a run is lost.",
    )


def _is_alive(connection: _Server) -> bool:
    """Return whether the connection is open, by the state of its socket."""
    if connection.closed:
        return False
    waiting = poll()
    waiting.register(connection.fileno(), POLLIN)
    return not waiting.poll(0)  # without a query it sends nothing but the end of the connection


def _message(exc: Exception) -> str:
    """The server's own words, else the first line: others quote the statement, or a place in it."""
    primary = exc.diag.message_primary if isinstance(exc, psycopg.Error) else None
    text = primary or str(exc).strip() or type(exc).__name__
    return text.splitlines()[0].rstrip(".")
