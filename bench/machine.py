"""What the figures were measured on: the machine and the versions."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

import apsw

from bench.databases import Database
from bench.peers import redis_server
from bench.stages import Extent
from bench.summary import Row


def describe(found: list[Database], extent: Extent) -> Row:
    """One row. What a system does not tell is None."""
    return {
        "kind": "machine",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "repeat": extent.repeat,
        "most": extent.most,
        "processor": _first("/proc/cpuinfo", "model name"),
        "cores": os.cpu_count(),
        "memory_gigabytes": _memory(),
        "load_before": os.getloadavg()[0],
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "sqlite": apsw.sqlite_lib_version(),
        "postgresql": next((_postgres(database) for database in found if database.name == "PostgreSQL"), None),
        "redis": redis_server.version(),
        "packages": {name: version(name) for name in ("fanin", "apsw", "psycopg")},
        "commit": _commit(),
    }


def _first(file: str, name: str) -> str | None:
    try:
        lines = Path(file).read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), None)


def _memory() -> int | None:
    total = _first("/proc/meminfo", "MemTotal")
    return None if total is None else round(int(total.split()[0]) / 1024 / 1024)


def _postgres(database: Database) -> str:
    import psycopg

    with psycopg.connect(database.address) as connection:
        number = connection.info.server_version
    return f"{number // 10000}.{number % 10000}"


def _commit() -> str | None:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True
    )
    return done.stdout.strip() or None
