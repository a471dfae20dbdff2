"""Where it is kept: the only floor that knows a database driver."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import urlsplit

from fanin.domain.errors import BadOption, shown
from fanin.stores.base import Bell, Store

DEFAULT_URL = "sqlite:///fanin.db"


def default_url() -> str:
    """``FANIN_URL``, else a file in the current folder."""
    return os.environ.get("FANIN_URL") or DEFAULT_URL


def open_store(url: str | None = None) -> Store:
    """The store of a URL: ``sqlite:///relative.db``, ``sqlite:////absolute.db`` or ``postgresql://…``.

    Nothing is connected yet; the first use does that. Raises `BadOption` for another kind of URL.
    """
    if url is None:
        url = default_url()
    given: Any = url
    if not isinstance(given, str) or not given:
        raise BadOption(
            f"url={shown(url)}: give sqlite:///file.db or postgresql://user@host/database, or None for the one that "
            f"FANIN_URL names, else {DEFAULT_URL}"
        )
    scheme = urlsplit(url).scheme
    if scheme == "sqlite":
        from fanin.stores.sqlite import SqliteStore

        return SqliteStore(url, sqlite_path(url))
    if scheme in ("postgresql", "postgres"):
        try:
            from fanin.stores.postgres import PostgresStore
        except ImportError as problem:
            raise BadOption(
                f"{url.split('@')[-1]}: the PostgreSQL driver is not installed ({problem}): "
                "pip install 'fanin[postgres]'"
            ) from problem
        return PostgresStore(url)
    raise BadOption(
        f"{url!r} is not a database that fanin knows: use sqlite:///file.db or postgresql://user@host/database"
    )


def sqlite_path(url: str) -> str:
    path = url.removeprefix("sqlite://").removeprefix("/")
    if not url.startswith("sqlite:///") or not path or "?" in path or path == ":memory:":
        raise BadOption(
            f"{url!r}: name a file, as in sqlite:///fanin.db (relative) or sqlite:////var/lib/app/fanin.db (absolute); "
            "a database in memory would be lost with the process"
        )
    return path


__all__ = ["Bell", "Store", "default_url", "open_store"]
