"""Where a PostgreSQL store is, and what each of its sessions sets before its first statement."""

from __future__ import annotations

import os
import re
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.string import TextLoader

from fanin.domain.errors import BadOption, UnsafeStore
from fanin.stores.pg_columns import ColumnDumper
from fanin.stores.pg_errors import where

MIN_VERSION = 130000
LOCK_SECONDS = 10
IDLE_SECONDS = 15

_PINS = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_sort": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
    "lock_timeout": f"{LOCK_SECONDS}s",
    "idle_in_transaction_session_timeout": f"{IDLE_SECONDS}s",
}
"""Without statistics (a table just filled) the planner sorts all ready rows at each claim, and scans all parts of a job
where it joins a batch of them: the cost per part then grows with the job. The enable switches only make the other plans
a last resort."""
_BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
_KEEPALIVE = {
    "connect_timeout": 10, "keepalives": 1, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3,
    "tcp_user_timeout": 20000,
}  # fmt: skip
_DURABLE = (
    "SELECT set_config('synchronous_commit', 'on', {local}) "
    "WHERE current_setting('synchronous_commit') IN ('off', 'local')"
)


class Target:
    """A URL taken apart: what libpq is told, the schema, and whether a transaction pooler stands between."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        query = dict(parse_qsl(parts.query))
        self.url = url
        self.schema = query.pop("fanin_schema", "fanin")
        self.pooled = query.pop("fanin_pooler", "none") == "transaction"
        self.listen_url = query.pop("fanin_listen", None) or os.environ.get("FANIN_LISTEN_URL")
        self.conninfo = urlunsplit(parts._replace(query=urlencode(query, quote_via=quote)))
        if not re.fullmatch("[a-z_][a-z0-9_]{0,49}", self.schema):
            raise BadOption(
                f"fanin_schema={self.schema!r}: use a name of lower-case letters, digits and underscores, up to 50"
            )
        known = conninfo_to_dict(self.conninfo)
        self.options: dict[str, Any] = {k: v for k, v in _KEEPALIVE.items() if k not in known}
        self.options["client_encoding"] = "utf8"  # whatever the environment says
        if not self.pooled:
            pins = " ".join(f"-c {name}={value}" for name, value in _PINS.items())
            self.options["options"] = f"{known.get('options', '')} {pins}".strip()
            self.begin = _BEGIN
        else:
            pins = "; ".join(f"SET LOCAL {name} = '{value}'" for name, value in _PINS.items())
            self.begin = f"{_BEGIN}; {pins}; {_DURABLE.format(local='true')}"

    def prepare(self, connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
        """What both kinds of connection need before their first statement."""
        connection.prepare_threshold = None if self.pooled else 2
        connection.adapters.register_loader("uuid", TextLoader)  # ids are strings everywhere
        connection.adapters.register_dumper(list, ColumnDumper)
        version = connection.info.server_version
        if version < MIN_VERSION:
            raise UnsafeStore(f"PostgreSQL {version // 10000} is too old: 13 or later is needed")
        encoding = connection.info.parameter_status("server_encoding")
        if encoding not in ("UTF8", None):  # a pooler may not say
            raise UnsafeStore(
                f"{where(self.url)} stores text as {encoding}, where not every result fits: create the database with "
                "ENCODING 'UTF8'"
            )

    @property
    def greetings(self) -> list[str]:
        """Statements to run on a new connection."""
        return [] if self.pooled else [_DURABLE.format(local="false")]
