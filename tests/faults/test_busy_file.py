"""One SQLite file under many processes that write at once, beside readers that will not let go of an old snapshot."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fanin.domain.identity import keyed_job_id
from fanin.stores import open_store
from fanin.testing.state import select
from tests.faults.crew import ROOT
from tests.faults.scale import scaled
from tests.support import invariants
from tests.support.databases import migrate_database
from tests.support.figures import record

WRITERS = 6
READERS = 2
ROUNDS = scaled(50)
SNAPSHOT_ROUNDS = 60
"""So many rounds of the writers a reader holds on to its snapshot."""

WRITER = """
import os, sys
from fanin.stores import open_store
from tests.protocol.helpers import claim, done, make, settle
url, log, name, rounds = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
store = open_store(url)
file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
print("ready", flush=True)
sys.stdin.readline()
for n in range(rounds):
    make(store, 1, key=f"{name} {n}", queue=name)
    (held,) = claim(store, queue=name)
    (answer,) = settle(store, done(held, str(n)))
    os.write(file, f"{name} {n} {answer.verdict.value}\\n".encode())  # acknowledged
store.close()
"""

READER = """
import sys, time
import apsw
from pathlib import Path
path, log, rounds, last = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
def said():
    return log.read_bytes().count(b"\\n") if log.exists() else 0
QUERY = (
    "SELECT count(*), sum(status = 'completed'), (SELECT count(*) FROM fanin_outbox), "
    "(SELECT count(*) FROM fanin_part WHERE status = 'succeeded') FROM fanin_job"
)
connection = apsw.Connection(path)
connection.set_busy_timeout(60_000)
print("ready", flush=True)
sys.stdin.readline()
snapshots = largest = 0
while said() < last:
    connection.execute("BEGIN")
    (first,) = connection.execute(QUERY)
    begun = said()
    while said() < min(begun + rounds, last):
        time.sleep(0.002)
        assert list(connection.execute(QUERY)) == [first], "a snapshot has changed"
    connection.execute("COMMIT")
    jobs, completed, events, succeeded = first
    assert (completed or 0) == events == succeeded, first
    snapshots += 1
    largest = max(largest, Path(path + "-wal").stat().st_size)
print(snapshots, largest)
"""


def start(program: str, *arguments: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)], cwd=ROOT, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_many_writers_beside_long_readers_meet_no_error_and_lose_nothing(sqlite_url: str, tmp_path: Path) -> None:
    """F078: no call was refused as busy, what was acknowledged is there, every reader's snapshot was whole.

    How evenly the writers came to their turns is noted, not judged: the machine has a say in it.
    """
    migrate_database(sqlite_url)
    path, log = sqlite_url.removeprefix("sqlite:///"), tmp_path / "said"
    last = WRITERS * ROUNDS
    writers = [start(WRITER, sqlite_url, log, f"writer-{n}", ROUNDS) for n in range(WRITERS)]
    readers = [start(READER, path, log, SNAPSHOT_ROUNDS * (n + 1), last) for n in range(READERS)]
    try:
        for process in [*writers, *readers]:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", process.communicate()[1]
        for process in [*writers, *readers]:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        for process in writers:
            _, problem = process.communicate()
            assert (process.returncode, problem) == (0, "")
        snapshots = largest = 0
        for process in readers:
            told, problem = process.communicate()
            assert (process.returncode, problem) == (0, "")
            snapshots += int(told.split()[0])
            largest = max(largest, int(told.split()[1]))
    finally:
        for process in [*writers, *readers]:
            process.kill()
            process.communicate()

    said = [line.split() for line in log.read_text().splitlines()]
    assert Counter(name for name, _, _ in said) == {f"writer-{n}": ROUNDS for n in range(WRITERS)}
    assert {verdict for _, _, verdict in said} == {"last"}
    store = open_store(sqlite_url)
    rows = select(store, "SELECT job_id, status, attempt, result FROM fanin.part")
    there = {(row["job_id"], row["result"]) for row in rows if (row["status"], row["attempt"]) == ("succeeded", 1)}
    missing = {(keyed_job_id(f"{name} {n}"), n) for name, n, _ in said} - there
    assert (missing, len(rows)) == (set(), last)
    store.close()
    assert invariants.violations(sqlite_url) == []

    behind = slowest_when_the_first_has_finished(said)
    record(
        "busy_file", writers=str(WRITERS), acknowledged=last, missing=0, errors=0, snapshots=snapshots,
        largest_log_bytes=str(largest), rounds_of_the_slowest=f"{behind} of {ROUNDS} when the first had finished",
        longest_wait=f"{longest_wait(said)} rounds of others",
    )  # fmt: skip


def slowest_when_the_first_has_finished(said: list[list[str]]) -> int:
    done = Counter({f"writer-{n}": 0 for n in range(WRITERS)})
    for name, _, _ in said:
        done[name] += 1
        if done[name] == ROUNDS:
            break
    return min(done.values())


def longest_wait(said: list[list[str]]) -> int:
    """The most rounds of others between two of one writer."""
    places: dict[str, list[int]] = {}
    for place, (name, _, _) in enumerate(said):
        places.setdefault(name, []).append(place)
    return max(b - a - 1 for found in places.values() for a, b in itertools.pairwise(found))
