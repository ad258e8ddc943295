"""The tables of a journal, of either kind."""

__all__ = ["APPLICATION", "FORMAT", "statements"]

APPLICATION = "otel-rl"
"""By this name a server of several bridges knows their connections."""

FORMAT = 8
"""Of the tables and of what is pickled in them. A bridge refuses a journal of another one."""

# `runs` is small, and written with the rows by the one who owns the run. `waiting` is written with
# every batch, by anybody: so it is a table of its own, and its numbers are in shards, lest those
# who write at the same moment wait for each other. The states are large.
_TABLES = """
CREATE TABLE meta (
  identity TEXT NOT NULL
);
CREATE TABLE runs (
  number     {number},
  run_id     TEXT NOT NULL UNIQUE,
  experiment TEXT NOT NULL,
  trial      TEXT NOT NULL,
  next_row   BIGINT NOT NULL DEFAULT 0,
  pruned_row BIGINT NOT NULL DEFAULT 0,
  is_open    BIGINT NOT NULL DEFAULT 0,
  row_bytes  BIGINT NOT NULL DEFAULT 0,
  roles      TEXT NOT NULL DEFAULT '{{}}',
  owner      TEXT NOT NULL DEFAULT '',
  epoch      BIGINT NOT NULL DEFAULT 0,
  expires_ns BIGINT NOT NULL DEFAULT 0,
  UNIQUE (experiment, trial)
);
CREATE TABLE waiting (
  run_id TEXT NOT NULL,
  shard  BIGINT NOT NULL,
  bytes  BIGINT NOT NULL,
  PRIMARY KEY (run_id, shard)
){keyed};
CREATE TABLE batches (
  position    {number},
  run_id      TEXT NOT NULL,
  shard       BIGINT NOT NULL,
  signal      TEXT NOT NULL,
  received_ns BIGINT NOT NULL,
  payload     {bytes} NOT NULL,
  crc         BIGINT NOT NULL
);
CREATE INDEX batches_of_run ON batches (run_id, position);
CREATE TABLE set_aside (
  position    BIGINT NOT NULL PRIMARY KEY,
  run_id      TEXT NOT NULL,
  signal      TEXT NOT NULL,
  received_ns BIGINT NOT NULL,
  payload     {bytes} NOT NULL,
  crc         BIGINT NOT NULL
);
CREATE TABLE states (
  run_id TEXT NOT NULL PRIMARY KEY,
  body   {bytes} NOT NULL,
  crc    BIGINT NOT NULL
){keyed};
CREATE TABLE descriptions (
  run_id TEXT NOT NULL PRIMARY KEY,
  body   {bytes} NOT NULL,
  crc    BIGINT NOT NULL
){keyed};
CREATE TABLE seen (
  number    {number},
  run_id    TEXT NOT NULL,
  newest_ns BIGINT NOT NULL,
  body      {bytes} NOT NULL,
  crc       BIGINT NOT NULL
);
CREATE INDEX seen_of_run ON seen (run_id, newest_ns);
CREATE TABLE trails (
  number    {number},
  run_id    TEXT NOT NULL,
  newest_ns BIGINT NOT NULL,
  body      {bytes} NOT NULL,
  crc       BIGINT NOT NULL
);
CREATE INDEX trails_of_run ON trails (run_id, newest_ns);
CREATE TABLE history (
  number    {number},
  run_id    TEXT NOT NULL,
  newest_ns BIGINT NOT NULL,
  body      {bytes} NOT NULL,
  crc       BIGINT NOT NULL
);
CREATE INDEX history_of_run ON history (run_id, newest_ns);
CREATE TABLE rows (
  run_id TEXT NOT NULL,
  number BIGINT NOT NULL,
  body   {bytes} NOT NULL,
  crc    BIGINT NOT NULL,
  PRIMARY KEY (run_id, number)
){keyed};
CREATE TABLE deliveries (
  run_id       TEXT NOT NULL,
  tracker      TEXT NOT NULL,
  next_row     BIGINT NOT NULL DEFAULT 0,
  confirmed_ns BIGINT NOT NULL DEFAULT 0,
  finished_row BIGINT NOT NULL DEFAULT 0,
  state        TEXT NOT NULL DEFAULT '',
  error        TEXT NOT NULL DEFAULT '',
  error_ns     BIGINT NOT NULL DEFAULT 0,
  PRIMARY KEY (run_id, tracker)
){keyed};
"""


def statements(*, number: str, of_bytes: str, keyed: str) -> str:
    """What makes the tables.

    Args:
        number: Type of a key that counts up by itself; no number is ever given twice.
        of_bytes: Type of a column of bytes.
        keyed: What a table ends with that is stored by its key.
    """
    return _TABLES.format(number=number, bytes=of_bytes, keyed=keyed)
