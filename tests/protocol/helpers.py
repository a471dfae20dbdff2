"""Make a job, claim its parts, report about them: what every test of the protocol does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import msgspec
import pytest

from fanin.domain import identity, limits
from fanin.domain.events import Event
from fanin.domain.model import Claim, JobRow, NewJob, Report, Settled, Spec, Verdict
from fanin.domain.policy import Policy
from fanin.protocol import close, deeds, finish, lease, outbox, read, submit
from fanin.protocol.steps import Query, Rows, Statement, Txn
from fanin.stores.base import Store

QUEUE = "q"
TASK = "t"


def new_job(store: Store, **options: Any) -> NewJob:
    """A job as a creator says it. ``policy`` may be a `Policy`, ``then`` a `Spec`; ``key`` decides the id."""
    key = options.get("key")
    job_id = options.pop("id", None) or (identity.keyed_job_id(key) if key else identity.new_job_id())
    policy = options.pop("policy", Policy())
    then = options.pop("then", None)
    return NewJob(
        id=job_id,
        bucket=store.bucket(job_id),
        policy=msgspec.json.encode(policy).decode(),
        successor=msgspec.json.encode(then).decode() if then else None,
        **{"task": TASK, "queue": QUEUE, **options},
    )


def make(store: Store, parts: int | Sequence[str] = 1, **options: Any) -> str:
    """Create a sealed job with so many parts, or with these payloads. Its id."""
    payloads = [str(n) for n in range(parts)] if isinstance(parts, int) else list(parts)
    job = new_job(store, **options)
    store.run(lambda: submit.create(job, len(payloads), lambda: submit.in_chunks(payloads)))
    return job.id


def make_open(store: Store, **options: Any) -> str:
    """Create an open job without parts. Its id."""
    job = new_job(store, **{"give_up_after": limits.OPEN_SECONDS, **options})
    assert store.run(lambda: submit.open_job(job))
    return job.id


def append(store: Store, job_id: str, first: int, count: int) -> int:
    payloads = [str(n) for n in range(first, first + count)]
    return store.run(lambda: submit.append(store.bucket(job_id), job_id, first, payloads))


def seal(store: Store, job_id: str, planned: int, request_hash: str | None = None) -> bool:
    return store.run(lambda: submit.seal(store.bucket(job_id), job_id, planned, request_hash, False))


def claim(
    store: Store,
    limit: int = limits.CLAIM_PARTS,
    *,
    queue: str = QUEUE,
    tasks: Iterable[str] = (TASK,),
    seconds: float = 60.0,
    worker: str = "w",
) -> list[Claim]:
    """One claim call, with a claim id of its own."""
    claim_id = identity.new_claim_id()
    leases = dict.fromkeys(tasks, seconds)
    return store.run(lambda: lease.claim(0, queue, leases, limit, claim_id, worker))


def claim_all(store: Store, **options: Any) -> list[Claim]:
    """Claim until nothing is ready."""
    found: list[Claim] = []
    while batch := claim(store, **options):
        found += batch
    return found


def settle(store: Store, *reports: Report, worker: str = "w") -> list[Settled]:
    return store.run(lambda: finish.settle(0, reports, worker))


def verdicts(store: Store, *reports: Report) -> list[Verdict]:
    return [answer.verdict for answer in settle(store, *reports)]


def done(held: Claim, result: str = "1") -> Report:
    return Report(held, "succeed", result=result)


def failed(held: Claim, message: str = "no") -> Report:
    return Report(held, "fail", error=error(message))


def retried(held: Claim, delay: float = 0.0, message: str = "again") -> Report:
    return Report(held, "retry", error=error(message), delay=delay)


def released(held: Claim, delay: float = 0.0) -> Report:
    return Report(held, "release", delay=delay)


def error(message: str) -> str:
    return msgspec.json.encode({"type": "ValueError", "message": message, "traceback": "tb"}).decode()


def run_all(store: Store, **options: Any) -> list[Verdict]:
    """Claim everything that is ready and succeed with it."""
    held = claim_all(store, **options)
    return verdicts(store, *map(done, held)) if held else []


def listeners(*names: str) -> str:
    """As a job row has them: one task each, all in the queue of the joins."""
    specs = [Spec(task=name, step=f"on/{name}", queue="joins", attempts=2) for name in names]
    return msgspec.json.encode(specs).decode()


def take(store: Store, limit: int = limits.CLAIM_EVENTS, seconds: float = 60.0) -> tuple[str, list[Event]]:
    """One claim of a relay: its claim id, and the events."""
    claim_id = identity.new_claim_id()
    return claim_id, store.run(lambda: outbox.take(0, limit, seconds, claim_id, "r"))


def publish(store: Store) -> list[str]:
    """Claim all events that may be claimed, and mark them. Their keys."""
    claim_id, events = take(store)
    keys = [event.key for event in events]
    assert store.run(lambda: outbox.settle(0, claim_id, [outbox.Said(key, "mark") for key in keys])) == []
    return keys


def cancel(store: Store, job_id: str, reason: str | None = None) -> bool:
    done = deeds.deed(reason=reason)
    return store.run(lambda: close.cancel(0, job_id, done))


def sweep_all(store: Store) -> int:
    """Sweep what closed jobs have left behind. How many parts were abandoned."""
    swept = 0
    while stripes := store.read(lambda: close.unswept(0)):
        for job_id, stripe in stripes:
            swept += sweep(store, job_id, stripe)
    return swept


def sweep(store: Store, job_id: str, stripe: int) -> int:
    return store.run(lambda: close.sweep(0, job_id, stripe))


def job(store: Store, job_id: str) -> JobRow:
    found = store.read(lambda: read.job(0, job_id))
    assert found is not None, f"there is no job {job_id}"
    return found


def part(store: Store, job_id: str, idx: int) -> dict[str, Any]:
    found = store.read(lambda: read.part(0, job_id, idx))
    assert found is not None, f"there is no part {idx}"
    return found


def states(store: Store, job_id: str) -> list[str]:
    """The states of a job's parts, in their order."""
    return [status for _, status, _ in store.read(lambda: read.results(0, job_id, 0, 1_000_000))]


def log(store: Store, job_id: str) -> list[tuple[int, int, str]]:
    """(idx, attempt, what) of a job's history, sorted."""
    return sorted((h["idx"], h["attempt"], h["what"]) for h in store.read(lambda: read.history(0, job_id)))


def events(store: Store, job_id: str) -> list[dict[str, Any]]:
    """The payloads of a job's events, in their order."""
    return [msgspec.json.decode(row[3]) for row in store.read(lambda: read.events(0, job_id))]


def successors(store: Store, job_id: str) -> list[str]:
    return [child for child, step in store.read(lambda: read.children([0], job_id)) if step is not None]


def ending(store: Store, job_id: str) -> tuple[str, str | None]:
    """(status, outcome), after looking that the event and the counts say the same."""
    row = job(store, job_id)
    if row.ended:
        assert row.open_stripes == 0
        said = events(store, job_id)
        assert len(said) == row.run
        facts = (row.status, row.outcome, row.succeeded_parts, row.failed_parts, row.abandoned_parts, row.run)
        names = ("status", "outcome", "succeeded", "failed", "abandoned", "run")
        assert tuple(said[-1][name] for name in names) == facts
    else:
        assert len(events(store, job_id)) == row.run - 1
    return row.status, row.outcome


def send(store: Store, statement: Statement) -> Rows:
    """One statement in a transaction of its own."""

    def txn() -> Txn[Rows]:
        return (yield statement)

    return store.run(txn)


def say(store: Store, sql: str, **values: Any) -> Rows:
    """Run one statement of the test's own: ``fanin.`` and ``:name`` as in a room."""
    return send(store, Query("test", "say", (), {"pg": sql, "lite": sql})(**values))


def snapshot(store: Store) -> dict[str, list[Any]]:
    """Everything in the database, to show that nothing was written."""
    tables = ("job", "job_stripe", "part", "attempt_log", "outbox", "schedule", "firing")
    return {t: sorted(say(store, f"SELECT * FROM fanin.{t}"), key=repr) for t in tables}


THEN = Spec(task="join", queue="joins", attempts=2, priority=7, extra='{"zip": true}')


class Clock:
    """The database's clock, moved by the test."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._ahead = 0.0

    def advance(self, seconds: float) -> None:
        """Let the database believe that ``seconds`` have passed, on every connection of the store."""
        self._ahead += seconds
        if self._store.dialect == "lite":
            store = cast(Any, self._store)
            before = store.clock
            store.clock = lambda: before() + seconds
            return
        say(
            self._store,
            "CREATE OR REPLACE FUNCTION fanin.clock() RETURNS double precision LANGUAGE sql STABLE PARALLEL SAFE "
            f"AS $$ SELECT extract(epoch FROM statement_timestamp())::double precision + {self._ahead!r} $$",
        )


@pytest.fixture
def clock(store: Store) -> Clock:
    """The clock of the test's database."""
    return Clock(store)
