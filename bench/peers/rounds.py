"""Rounds: in each one fanin and every peer run once, so that all see the same neighbours."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench import end_to_end
from bench.databases import Database
from bench.peers import environments, redis_server
from bench.peers.catalog import Peer
from bench.peers.environments import Missing
from bench.settings import Setting
from bench.summary import Row, median

WORKERS = 2
LONGEST_SECONDS = 300
SCRIPTS = Path(__file__).parent / "scripts"


def rows(found: list[Database], peers: list[Peer], repeat: int, most: int | None = None) -> Iterator[Row]:
    """One row for fanin on each database and each number of parts, and one for each peer, the missing ones too.

    ``most``: give nobody more parts than that.
    """
    sizes = sorted({_parts(peer, most) for peer in peers})
    own: dict[tuple[str, int], list[Row]] = {(database.name, n): [] for database in found for n in sizes}
    theirs: dict[str, list[Row]] = {peer.name: [] for peer in peers}
    reasons: dict[str, str] = {}
    for peer in peers:  # before the first round, so that no run has an installation beside it
        try:
            environments.python(peer)
        except Missing as problem:
            reasons[peer.name] = str(problem)
    with redis_server.redis() as redis:
        for number in range(repeat):
            print(f"round {number + 1} of {repeat}", file=sys.stderr, flush=True)
            for database in found:
                for n in sizes:
                    own[database.name, n].append(end_to_end.measure(database, Setting(n, WORKERS)))
            for peer in peers:
                if peer.name not in reasons:
                    try:
                        theirs[peer.name].append(_measure(peer, _parts(peer, most), found, redis))
                    except Missing as problem:
                        reasons[peer.name] = str(problem)
    for (name, n), runs in own.items():
        yield {
            "kind": "peer", "peer": "fanin", "database": name, "parts": n, "workers": WORKERS, "own": True,
            "parts_per_second": median([run["parts_per_second"] for run in runs]),
            "submit_seconds": median([n / run["submit_parts_per_second"] for run in runs]),
            "runs": [{key: run[key] for key in ("parts_per_second", "submit_parts_per_second")} for run in runs],
        }  # fmt: skip
    for peer in peers:
        yield _row(peer, _parts(peer, most), theirs[peer.name], reasons.get(peer.name), own)


def _parts(peer: Peer, most: int | None) -> int:
    return peer.parts if most is None else min(peer.parts, most)


def _row(peer: Peer, parts: int, runs: list[Row], missing: str | None, own: dict[tuple[str, int], list[Row]]) -> Row:
    def faster(database: str) -> float | None:
        pairs = zip(own.get((database, parts), []), runs, strict=False)
        return median([ours["parts_per_second"] / theirs["parts_per_second"] for ours, theirs in pairs])

    return {
        "kind": "peer", "peer": peer.name, "own": False, "database": peer.store, "parts": parts, "workers": WORKERS,
        "version": runs[0]["version"] if runs else None, "join": peer.join, "survives": peer.survives,
        "missing": missing, "wrong": next((run["wrong"] for run in runs if run["wrong"]), None),
        "parts_per_second": median([run["parts_per_second"] for run in runs]),
        "submit_seconds": median([run["submit_seconds"] for run in runs]),
        "fanin_sqlite_times": faster("SQLite"), "fanin_postgres_times": faster("PostgreSQL"), "runs": runs,
    }  # fmt: skip


def _measure(peer: Peer, parts: int, found: list[Database], redis: str | None) -> Row:
    """One run. Raises `Missing` if it is not possible here."""
    program = environments.python(peer)
    with _place(peer, found, redis) as url:
        command = [str(program), str(SCRIPTS / f"{peer.script}.py"), "--parts", str(parts), "--workers", str(WORKERS)]
        environment = {**os.environ, **peer.environment, "FANIN_PEER_URL": url, "PYTHONWARNINGS": "ignore"}
        status, said, complaints = _run(command, environment)
    if status or not said:
        raise Missing(f"its run ended with {status}: {(complaints or ['nothing said'])[-1]}")
    outcome: dict[str, Any] = json.loads(said[-1])
    return {
        **outcome,
        "parts_per_second": parts / outcome["total_seconds"],
        "version": environments.version(peer, program),
        "wrong": _fault(outcome, parts),
    }


def _run(command: list[str], environment: dict[str, str]) -> tuple[int, list[str], list[str]]:
    """Exit status and lines of a script. It is asked to stop rather than killed, for it has workers to stop."""
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=SCRIPTS
    )
    try:
        said, complaints = process.communicate(timeout=LONGEST_SECONDS)
    except subprocess.TimeoutExpired:
        raise Missing(f"it was not done after {LONGEST_SECONDS:g} s") from None
    finally:
        if process.poll() is None:
            process.terminate()
            process.communicate()
    return process.returncode, said.splitlines(), complaints.splitlines()


def _fault(outcome: dict[str, Any], parts: int) -> str | None:
    """What is wrong with a run, in words. A fault of a peer is reported, it does not stop the benchmark."""
    if outcome["joins"] != 1:
        return f"{outcome['joins']} callbacks"
    if (outcome["count"], outcome["distinct"], outcome["ordered"]) != (parts, parts, True):
        return f"{outcome['distinct']} of {parts} results, in order: {outcome['ordered']}"
    return None


@contextmanager
def _place(peer: Peer, found: list[Database], redis: str | None) -> Iterator[str]:
    """An empty place for the peer's things. Raises `Missing` without the server that it needs."""
    if peer.store == "redis":
        if redis is None:
            raise Missing("there is no redis-server here")
        redis_server.empty(redis)
        yield redis
    elif peer.store == "postgres":
        server = next((database for database in found if database.name == "PostgreSQL"), None)
        if server is None:
            raise Missing("it needs PostgreSQL, which was left out")
        with _postgres_database(server) as url:
            yield url
    else:
        with tempfile.TemporaryDirectory(prefix="fanin-peer-") as folder:
            yield f"{folder}/peer.db"


@contextmanager
def _postgres_database(server: Database) -> Iterator[str]:
    import psycopg

    name = f"peer_{secrets.token_hex(4)}"
    with psycopg.connect(server.address, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        connection.execute("CHECKPOINT")
        try:
            yield f"{server.address.rpartition('/')[0]}/{name}"
        finally:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
