"""The tables of a journal, in SQLite and in PostgreSQL, and the version of their format."""

import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from otel_rl.bridge.journal.interface import RECORD_BYTES, Connection
from otel_rl.errors import ConfigError
from otel_rl.version import __version__

APPLICATION = "otel-rl"
"""By this name a server of several bridges knows their connections."""

FORMAT = 1
"""Of the tables, and of what is encoded in them. Each release with another one reads this one."""

# `meta` has the version of otel_rl that wrote the journal last, and the time when it was made.
#
# `runs` is small, and written with the rows by the one who owns the run. `waiting` is written with
# every batch, by anybody: so it is a table of its own, and its numbers are in shards, lest those
# who write at the same moment wait for each other. The states are large.
#
# What a run takes is counted by triggers. A record is counted as long as it was when it came, even
# if the disk has damaged it since: so its length is stored, before the body that need not be read.
#
# `log`, `archive` and `rows` name no run as theirs, so that who adds to them need not look it up;
# they go in the transaction that removes the run, see `Retention`.
_TABLES = """
CREATE TABLE meta (
  format   BIGINT NOT NULL,
  version  TEXT NOT NULL,
  identity TEXT NOT NULL,
  since_ns BIGINT NOT NULL
);
CREATE TABLE runs (
  number     {number},
  run_id     TEXT NOT NULL UNIQUE,
  experiment TEXT NOT NULL,
  trial      TEXT NOT NULL,
  next_row   BIGINT NOT NULL DEFAULT 0,
  pruned_row BIGINT NOT NULL DEFAULT 0,
  is_open    BIGINT NOT NULL DEFAULT 0,
  row_bytes     BIGINT NOT NULL DEFAULT 0,
  log_bytes     BIGINT NOT NULL DEFAULT 0,
  archive_bytes BIGINT NOT NULL DEFAULT 0,
  begun_ns   BIGINT NOT NULL DEFAULT 0,
  changed_ns BIGINT NOT NULL DEFAULT 0,
  step       BIGINT,
  step_ns    BIGINT NOT NULL DEFAULT 0,
  lost_ns    BIGINT NOT NULL DEFAULT 0,
  roles      TEXT NOT NULL DEFAULT '{{}}',
  owner      TEXT NOT NULL DEFAULT '',
  epoch      BIGINT NOT NULL DEFAULT 0,
  expires_ns BIGINT NOT NULL DEFAULT 0,
  UNIQUE (experiment, trial)
);
CREATE TABLE deleted (
  run_id     TEXT NOT NULL PRIMARY KEY,
  experiment TEXT NOT NULL,
  trial      TEXT NOT NULL,
  next_row   BIGINT NOT NULL,
  lost_ns    BIGINT NOT NULL,
  deleted_ns BIGINT NOT NULL
){keyed};
CREATE INDEX deleted_by_age ON deleted (deleted_ns);
CREATE TABLE waiting (
  run_id {of_run},
  shard  BIGINT NOT NULL,
  bytes  BIGINT NOT NULL,
  PRIMARY KEY (run_id, shard)
){keyed};
CREATE TABLE batches (
  position    {number},
  run_id      {of_run},
  shard       BIGINT NOT NULL,
  signal      TEXT NOT NULL,
  received_ns BIGINT NOT NULL,
  bytes       BIGINT NOT NULL GENERATED ALWAYS AS (LENGTH(payload)) STORED,
  payload     {bytes} NOT NULL,
  crc         BIGINT NOT NULL
);
CREATE INDEX batches_of_run ON batches (run_id, position);
CREATE TABLE set_aside (
  position    BIGINT NOT NULL PRIMARY KEY,
  run_id      {of_run},
  signal      TEXT NOT NULL,
  received_ns BIGINT NOT NULL,
  payload     {bytes} NOT NULL,
  crc         BIGINT NOT NULL
);
CREATE TABLE inbox (
  segment  TEXT NOT NULL PRIMARY KEY,
  position BIGINT NOT NULL
){keyed};
CREATE TABLE states (
  run_id {of_run} PRIMARY KEY,
  body   {bytes} NOT NULL,
  crc    BIGINT NOT NULL
){keyed};
CREATE TABLE descriptions (
  run_id {of_run} PRIMARY KEY,
  body   {bytes} NOT NULL,
  crc    BIGINT NOT NULL
){keyed};
CREATE TABLE log (
  number {number},
  run_id TEXT NOT NULL,
  kind   TEXT NOT NULL,
  newest BIGINT NOT NULL,
  bytes  BIGINT NOT NULL GENERATED ALWAYS AS (LENGTH(body)) STORED,
  body   {bytes} NOT NULL,
  crc    BIGINT NOT NULL
);
CREATE INDEX log_of_run ON log (run_id, kind, newest);
CREATE TABLE archive (
  number    {number},
  run_id    TEXT NOT NULL,
  samples   BIGINT NOT NULL,
  made_ns   BIGINT NOT NULL,
  file      BIGINT NOT NULL DEFAULT 0,
  bytes     BIGINT NOT NULL GENERATED ALWAYS AS (LENGTH(body)) STORED,
  body      {bytes} NOT NULL,
  crc       BIGINT NOT NULL
);
CREATE INDEX archive_of_run ON archive (run_id, number);
CREATE TABLE rows (
  run_id TEXT NOT NULL,
  number BIGINT NOT NULL,
  bytes  BIGINT NOT NULL GENERATED ALWAYS AS (LENGTH(body)) STORED,
  body   {bytes} NOT NULL,
  crc    BIGINT NOT NULL,
  PRIMARY KEY (run_id, number)
){keyed};
CREATE TABLE deliveries (
  run_id       {of_run},
  tracker      TEXT NOT NULL,
  next_row     BIGINT NOT NULL DEFAULT 0,
  confirmed_ns BIGINT NOT NULL DEFAULT 0,
  finished_row BIGINT NOT NULL DEFAULT 0,
  allowed_row  BIGINT NOT NULL DEFAULT 0,
  location     TEXT NOT NULL DEFAULT '',
  state        TEXT NOT NULL DEFAULT '',
  error        TEXT NOT NULL DEFAULT '',
  error_ns     BIGINT NOT NULL DEFAULT 0,
  PRIMARY KEY (run_id, tracker)
){keyed};
"""

TABLES: Final[Sequence[str]] = re.findall(r"CREATE TABLE (\w+)", _TABLES)
"""Names of the tables that every journal has."""


class _Counted(NamedTuple):
    """Bytes of records that a trigger adds to a sum, or subtracts from it.

    Attributes:
        event: Statement that fires the trigger: INSERT or DELETE.
        more: Bytes that a record counts beside its body.
        keys: Columns by which a record finds its sum.
    """

    event: str
    table: str
    sums: str
    sum: str
    more: int = 0
    keys: Sequence[str] = ("run_id",)

    def words(self) -> dict[str, str | int]:
        side, sign = ("NEW", "+") if self.event == "INSERT" else ("OLD", "-")
        return self._asdict() | {
            "name": f"{self.event}_on_{self.table}".lower(),
            "side": side,
            "sign": sign,
            "keys": ", ".join(self.keys),
            "of_record": " AND ".join(f"{key} = {side}.{key}" for key in self.keys),
            "of_records": " AND ".join(f"{self.sums}.{key} = records.{key}" for key in self.keys),
        }


_COUNTED: Final = (
    # What comes is counted by who appends it: with a trigger for that, a server of PostgreSQL takes
    # a third more CPU for each request.
    _Counted("DELETE", "batches", "waiting", "bytes", keys=("run_id", "shard")),
    *(
        _Counted(event, table, "runs", sum_, more)
        for table, sum_, more in (
            ("rows", "row_bytes", 0),
            ("log", "log_bytes", RECORD_BYTES),
            ("archive", "archive_bytes", RECORD_BYTES),
        )
        for event in ("INSERT", "DELETE")
    ),
)


@dataclass(frozen=True, slots=True)
class Dialect:
    """What differs between the two databases in the statements that make the tables.

    Attributes:
        number: Type of a key that counts up by itself; no number is given twice.
        of_bytes: Type of a column of bytes.
        keyed: End of the statement for a table that is stored in the order of its key.
        trigger: Templates of the statements that make a trigger, for ``_Counted.words``.
    """

    number: str
    of_bytes: str
    keyed: str
    trigger: Sequence[str]

    def statements(self) -> Sequence[str]:
        tables = _TABLES.format(
            number=self.number,
            bytes=self.of_bytes,
            keyed=self.keyed,
            of_run="TEXT NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE",
        )
        triggers = [
            statement.format(**counted.words())
            for counted in _COUNTED
            for statement in self.trigger
        ]
        meta = f"{FORMAT}, '{__version__}', '{secrets.token_hex(16)}', {time.time_ns()}"
        return [
            *(statement for statement in tables.split(";") if statement.strip()),
            *triggers,
            f"INSERT INTO meta VALUES ({meta})",  # noqa: S608  # ours
        ]


def identity_of(connection: Connection, *, place: str, another: str) -> str:
    """Return the identity of a journal, which this version writes from now on.

    Args:
        connection: Connection to the journal, within a transaction.
        place: Setting and value that name the journal, for the message.
        another: What to start with instead, for the hint.

    Raises:
        ConfigError: Another version wrote the journal in a format that this version does not read.
    """
    found, version, identity = connection.execute(
        "SELECT format, version, identity FROM meta"
    ).fetchone()
    if found != FORMAT:
        raise ConfigError(
            f"{place} has format {found}, written by otel_rl {version}; otel_rl {__version__} "
            f"reads format {FORMAT}.",
            hint=f"Install otel_rl {version}, or start with {another}.",
        )
    if version != __version__:
        connection.execute("UPDATE meta SET version = ?", (__version__,))
    return str(identity)
