"""SQLite under power cuts, a full disk and input/output errors. The long form runs every moment; this is a share."""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import msgspec
import pytest

from fanin.domain import identity
from fanin.domain.errors import Unavailable
from fanin.domain.model import Claim, NewJob, Report, Spec, Verdict
from fanin.protocol import close, finish, lease, redrive, submit
from fanin.protocol.steps import TxnFactory
from fanin.stores.sqlite import SqliteStore
from fanin.testing.powerloss import Call, Disk, RecordingStore, cut_everywhere
from tests.support.figures import record

SHARE = float(os.environ.get("FANIN_POWERLOSS_SHARE", "0.12"))
SEED = int(os.environ.get("FANIN_POWERLOSS_SEED", "1"))
DRAWS = 5 if SHARE >= 1 else 1
"""So many images of each moment and mode with chance."""
QUEUE = "default"


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory where the machine has such a place: the images are many, and the disk is not what is tested."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as name:
        yield Path(name)


def new_job(key: str, policy: str = "{}") -> NewJob:
    spec = Spec(task="join", queue=QUEUE, attempts=50)
    job_id = identity.keyed_job_id(key)
    successor = msgspec.json.encode(spec).decode()
    return NewJob(job_id, 0, "work", QUEUE, key=key, request_hash=key, policy=policy, successor=successor, attempts=50)


def life(say: Callable[[TxnFactory[object]], object], expire: Callable[[], None]) -> None:
    """The life of three jobs, one transaction at a time: each ``say`` is acknowledged when it returns."""

    def claim(limit: int) -> list[Claim]:
        found: list[Claim] = []
        while len(found) < limit:
            more = say(lambda: lease.claim(0, QUEUE, {"work": 60.0, "join": 60.0}, limit, identity.new_claim_id(), "w"))
            assert isinstance(more, list)
            found += more
            if len(found) < limit:  # a claim was committed whose answer was lost: its lease has to end first
                expire()
                say(lambda: lease.wake(0))
        return found

    def settle(claims: list[Claim], verb: str = "succeed") -> None:
        result = '"' + "x" * 400 + '"' if verb == "succeed" else None
        error = None if verb == "succeed" else '{"type":"E","message":"m"}'
        say(lambda: finish.settle(0, [Report(c, verb, result, error) for c in claims], "w"))

    for key, policy in (("plain", "{}"), ("tolerant", '{"tolerate":2,"fail_fast":true}'), ("cancelled", "{}")):
        job = new_job(key, policy)
        say(lambda: submit.create(job, 6, lambda: [[f'["{"p" * 300}{n}"]' for n in range(6)]]))
        held = claim(6)
        if key == "plain":
            for one in held:
                settle([one])
            settle(claim(1))
        elif key == "tolerant":
            settle(held[:2], "retry")
            settle(held[2:5], "fail")
            say(lambda: close.sweep(0, job.id, 0))
            say(lambda: redrive.redrive(0, job.id, 1, 50))
            settle(claim(6))
        else:
            settle(held[:3])
            say(lambda: lease.renew(0, [(c, 60.0) for c in held[3:]]))
            say(lambda: close.cancel(0, job.id))
            say(lambda: close.sweep(0, job.id, 0))


def recorded(path: Path, synchronous: str = "FULL") -> list[Call]:
    store = RecordingStore(str(path), Disk())
    try:
        store._open_writer().execute(f"PRAGMA synchronous = {synchronous}")
        store.acknowledge()

        def say(factory: TxnFactory[object]) -> object:
            value = store.run(factory)
            store.acknowledge()
            return value

        life(say, lambda: pytest.fail("nothing is lost on a healthy disk"))
        return list(store.disk.log)
    finally:
        store.close()


def test_no_power_cut_breaks_an_invariant_or_loses_an_acknowledged_commit(folder: Path) -> None:
    log = recorded(folder / "life.db")
    found = cut_everywhere(log, folder, random.Random(SEED), SHARE, DRAWS)
    record("powerloss", images=found.images, moments=len(log), wrong=len(found.wrong), seed=str(SEED))
    assert found.images > 50 * SHARE
    assert found.wrong == []


def test_the_cuts_would_notice_a_store_that_does_not_sync_its_commits(folder: Path) -> None:
    log = recorded(folder / "life.db", synchronous="NORMAL")
    found = cut_everywhere(log, folder, random.Random(SEED), max(SHARE, 0.12))
    assert any("neither the acknowledged state" in problem for problem in found.wrong), found


@pytest.mark.parametrize("error", [apsw.FullError, apsw.IOError], ids=["full", "io-error"])
def test_a_disk_that_refuses_costs_another_try_and_nothing_else(folder: Path, error: type[apsw.Error]) -> None:
    """Refuse the n-th call of each transaction, for n = 1, 2, … until it gets through; then say it again."""
    disk = Disk()
    store = RecordingStore(str(folder / "life.db"), disk)
    store._open_writer()

    quiet = 0

    def say(factory: TxnFactory[object]) -> object:
        nonlocal quiet
        if quiet > 0:
            quiet -= 1
            return store.run(factory)
        at = 1
        while True:
            disk.fail(at, error)
            try:
                return store.run(factory)
            except Unavailable:
                at += 1
            finally:
                disk.fail(None)

    started = time.time()
    store.clock = lambda: started

    def expire() -> None:
        nonlocal started, quiet
        started += 61.0
        quiet = 2  # the wake and the claim: else the same answer would be lost for ever

    life(say, expire)
    store.close()
    assert disk.hits.total() > 100
    survivor = SqliteStore("sqlite:///x", str(folder / "life.db"))
    try:
        assert [name for name, _, findings in survivor.check() if findings] == []
        rows = survivor._open_writer().execute(
            "SELECT key, run, outcome FROM fanin_job WHERE key IS NOT NULL ORDER BY key"
        )
        assert list(rows) == [("cancelled", 1, "cancelled"), ("plain", 1, "all_ok"), ("tolerant", 2, "all_ok")]
        failed = survivor._open_writer().execute("SELECT count(*) FROM fanin_attempt_log WHERE what = 'failed'")
        assert list(failed) == [(3,)], "an error of the disk was taken for a failure of a part"
    finally:
        survivor.close()


def test_saying_a_settlement_again_after_a_refused_disk_is_a_replay_or_the_first_time(folder: Path) -> None:
    disk = Disk()
    store = RecordingStore(str(folder / "one.db"), disk)
    job = new_job("one")
    store.run(lambda: submit.create(job, 1, lambda: [["[1]"]]))
    (held,) = store.run(lambda: lease.claim(0, QUEUE, {"work": 60.0}, 1, identity.new_claim_id(), "w"))
    verdicts = set()
    for at in range(1, 40):
        disk.fail(at, apsw.IOError)
        try:
            answer = store.run(lambda: finish.settle(0, [Report(held, "succeed", "1")], "w"))
        except Unavailable:
            continue
        finally:
            disk.fail(None)
        verdicts.add(answer[0].verdict)
        break
    (again,) = store.run(lambda: finish.settle(0, [Report(held, "succeed", "1")], "w"))
    assert again.verdict is Verdict.REPLAY
    assert verdicts <= {Verdict.LAST, Verdict.REPLAY}
    store.close()
