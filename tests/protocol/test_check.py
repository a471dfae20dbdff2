"""Each invariant finds the corruption that it is for, and finds nothing in a healthy database."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

import fanin
from fanin.domain import identity
from fanin.domain.model import Claim
from fanin.domain.policy import Policy
from fanin.protocol import check, lease, outbox, outputs, progress, redrive, schedule
from fanin.stores.base import Store
from tests.protocol import flows, test_flow_events, test_nested
from tests.protocol.effects import called, intent, said, wanting
from tests.protocol.helpers import (
    THEN,
    Clock,
    append,
    cancel,
    claim,
    done,
    failed,
    listeners,
    make,
    make_open,
    new_job,
    publish,
    retried,
    run_all,
    say,
    settle,
    take,
)
from tests.sagas.outside import Firm, Outside
from tests.sagas.walk import Points, Walk


def findings(store: Store) -> set[str]:
    """The names of the checks that find something."""
    return {name for name, _, found in store.check() if found}


def running(store: Store) -> str:
    job_id = make(store, 4)
    first, second, *_ = claim(store, 3)
    settle(store, done(first), failed(second))
    return job_id


def ended(store: Store) -> str:
    job_id = make(store, 2, then=THEN)
    run_all(store)
    return job_id


def cancelled(store: Store) -> str:
    job_id = make(store, 2)
    cancel(store, job_id)
    return job_id


def opened(store: Store) -> str:
    job_id = make_open(store)
    append(store, job_id, 0, 2)
    return job_id


def checkpointed(store: Store) -> str:
    job_id = make(store, 1)
    (held,) = claim(store)
    store.run(lambda: lease.checkpoint(held, 60.0, "1"))
    return job_id


def kept_output(store: Store) -> str:
    job_id = make(store, 1)
    (held,) = claim(store)
    with_output(store, held)
    settle(store, done(held))
    store.run(lambda: outputs.keep(0, 0.0))
    return job_id


def lost_output(store: Store) -> str:
    job_id = make(store, 2)
    held, _ = claim(store)
    with_output(store, held)
    settle(store, failed(held))
    return job_id


def with_output(store: Store, held: Claim) -> None:
    assert store.run(lambda: outputs.stage(held, "a", "/x"))
    assert store.run(lambda: outputs.mark_ready(held, "a", 3, "digest"))


def wanted(store: Store) -> str:
    """A part that has succeeded and wants something done, beside one that still runs."""
    job_id = make(store, 2)
    held, _ = claim(store)
    settle(store, wanting(held, intent(mode="at_most_once")))
    return job_id


def calling(store: Store) -> str:
    job_id = wanted(store)
    called(store)
    return job_id


def two_stripes(store: Store) -> str:
    return make(store, 128, stripes=2)


def with_family(store: Store) -> str:
    """An ended job whose successor has ended too: an ended job refers to no live part."""
    job_id = ended(store)
    run_all(store, queue="joins", tasks=["join"])
    return job_id


def heard(store: Store) -> str:
    """An ended job with two listeners."""
    return make(store, 0, listeners=listeners("one", "two"))


def taken(store: Store) -> str:
    job_id = ended(store)
    take(store)
    return job_id


def delivered(store: Store) -> str:
    job_id = ended(store)
    publish(store)
    return job_id


def parked(store: Store) -> str:
    job_id = ended(store)
    claim_id, events = take(store)
    said = [outbox.Said(event.key, "park", error="no") for event in events]
    assert store.run(lambda: outbox.settle(0, claim_id, said)) == []
    return job_id


def grown(store: Store) -> str:
    """A job that grows, of two planned parts and one that the first of them has spawned."""
    job_id = make(store, 2, width=5)
    (held,) = claim(store, 1)
    settle(store, msgspec.structs.replace(done(held), spawns=((identity.item_key("a"), "a"),)))
    return job_id


def twice(store: Store) -> str:
    """A job whose two runs have ended; neither event has left."""
    job_id = make(store, 1)
    settle(store, failed(claim(store)[0]))
    assert store.run(lambda: redrive.redrive(0, job_id, 1, 1)) == 2
    run_all(store)
    return job_id


def scheduled(store: Store) -> str:
    """A schedule of which two slots were fired, with one job each, which have ended."""
    assert store.run(lambda: schedule.declare(0, "nightly", "{}", "{}"))
    say(store, "UPDATE fanin.schedule SET mark = 0")
    for seen, at in ((0.0, 1.0), (1.0, 2.0)):
        made = new_job(store, id=identity.firing_id("nightly", at), step="at/nightly")
        new = schedule.Prepared(msgspec.structs.replace(made, bucket=0), 0, list)
        assert store.run(lambda: schedule.fire(0, schedule.Slot("nightly", at, seen), new)).what == "fired"
    return made.id


def in_nested(store: Store) -> str:
    """A part that waits for a job of its own."""
    return test_nested.waiting(store)[0].job_id


def in_flow(store: Store) -> str:
    """A chain whose first step runs."""
    return flows.start(store, {"a": "", "b": "a"})


def compensated(store: Store) -> str:
    """A chain whose first step was undone, with an effect of it."""
    flow_id = flows.start(store, {"a": "", "b": "a"}, undo=["a"], number=2)
    settle(store, wanting(flows.held(store, flow_id, "a"), intent()))
    said(store, called(store)[0], "mark")
    flows.fail(store, flow_id, "b")
    flows.undo(store, flow_id, "a")
    return flow_id


def compensated_below(store: Store) -> str:
    """A flow whose first step was undone, with effects of the jobs nested below it."""
    with fanin.App(store.url, max_parts=3) as app:
        walk = Walk(Firm(app), Points(app.store), "split", Outside(refuses=frozenset(["b/0"])))
        walk.go()
    return walk.run.id


def listened(store: Store) -> str:
    """A flow that asked for a person, and then ended, each with jobs that listen."""
    return test_flow_events.waits_and_ends(store)


def telling(store: Store) -> str:
    """A job of two parts that has told of a failure and of its progress."""
    job_id = make(store, 2, failure_events=True, progress_every=1e-9, policy=Policy(tolerate=2))
    settle(store, failed(claim(store)[0]))
    assert store.run(lambda: progress.tell(0, job_id))
    return job_id


LOOSE = (
    "ALTER TABLE fanin.part DROP CONSTRAINT {0}",
    "PRAGMA ignore_check_constraints = ON",
)

PLANTED: list[tuple[str, Callable[[Store], str], str]] = [
    ("c1", running, "UPDATE fanin.job_stripe SET remaining = remaining - 1, succeeded = succeeded + 1"),
    ("c1", running, "UPDATE fanin.job_stripe SET remaining = remaining - 1, failed = failed + 1"),
    ("c1", running, "DELETE FROM fanin.part WHERE idx = 3"),
    ("c1", running, "UPDATE fanin.part SET status = 'failed', ready = false WHERE status = 'running'"),
    ("c2", running, "UPDATE fanin.job SET planned_parts = 5"),
    ("c2", ended, "UPDATE fanin.job SET sealed_parts = 3, planned_parts = 3 WHERE depth = 0"),
    ("c1", grown, "UPDATE fanin.job_stripe SET spawned = 0"),
    ("c2", grown, "UPDATE fanin.part SET spawned_by = NULL"),
    ("c3", grown, "UPDATE fanin.part SET spawned_by = 1 WHERE idx = 2"),
    ("c3", grown, "UPDATE fanin.part SET spawned_by = 7 WHERE idx = 2"),
    ("c3", grown, "UPDATE fanin.job SET spawn_from = 3"),
    ("c3", grown, "UPDATE fanin.part SET spawned_by = 0 WHERE idx = 1"),
    ("c3", grown, "UPDATE fanin.job SET width = NULL"),
    ("c5", grown, "UPDATE fanin.job SET width = 2"),
    ("c5", grown, "DELETE FROM fanin.part_key"),
    ("c5", running, "INSERT INTO fanin.part_key (bucket, job_id, key) "
     "SELECT 0, id, '1b4e28ba-2fa1-41d2-883f-0016d3cca427' FROM fanin.job"),
    ("c4", running, "UPDATE fanin.job SET open_stripes = 0"),
    ("c7", running, "UPDATE fanin.part SET stripe = 7 WHERE idx = 3"),
    (
        "c8", ended, "INSERT INTO fanin.leftover (bucket, job_id, outputs, at) SELECT bucket, id, false, 1 "
        "FROM fanin.job WHERE step IS NULL",
    ),
    (
        "c8", running, "INSERT INTO fanin.leftover (bucket, job_id, outputs, at, parent_id) "
        "SELECT bucket, '1b4e28ba-2fa1-41d2-883f-0016d3cca427', false, 1, id FROM fanin.job",
    ),
    ("t1", ended, "UPDATE fanin.job SET succeeded_parts = 1 WHERE depth = 0"),
    ("t1", ended, "UPDATE fanin.job SET failed_parts = 1 WHERE depth = 0"),
    ("t3", running, "UPDATE fanin.part SET attempts_allowed = 0 WHERE status = 'running'"),
    ("t4", ended, "UPDATE fanin.outbox SET payload = '{\"outcome\": \"all_ok\"}'"),
    ("j2", ended, "DELETE FROM fanin.outbox"),
    ("j2", ended, "UPDATE fanin.job SET run = 2 WHERE depth = 0"),
    ("j2", running, "INSERT INTO fanin.outbox (bucket, event_key, job_id, seq, type, payload, at) "
     "SELECT bucket, 'again', id, 1, 'job.finished', "
     "'{\"succeeded\":1,\"failed\":0,\"abandoned\":0,\"outcome\":\"all_ok\"}', 0 FROM fanin.job"),
    ("j3", ended, "DELETE FROM fanin.part WHERE task = 'join'"),
    ("j5", heard, "UPDATE fanin.job SET step = 'then' WHERE step = 'on/two'"),
    ("j5", heard, "UPDATE fanin.job SET listeners = '[]' WHERE depth = 0"),
    ("j4", ended, "UPDATE fanin.part SET status = 'running', result = NULL WHERE idx = 1"),
    ("j7", running, "UPDATE fanin.part SET attempts_allowed = attempt, ready = false WHERE status = 'pending'"),
    ("j8", cancelled, "UPDATE fanin.job_stripe SET closed = false"),
    ("f7", checkpointed, "UPDATE fanin.part SET checkpoint_attempt = attempt + 1"),
    ("f5", kept_output, "UPDATE fanin.staged_output SET status = 'swept'"),
    ("f5", lost_output, "UPDATE fanin.staged_output SET status = 'kept'"),
    ("f6", lost_output, "UPDATE fanin.staged_output SET attempt = 2"),
    ("f6", lost_output, "UPDATE fanin.staged_output SET claim_id = '1b4e28ba-2fa1-41d2-883f-0016d3cca427'"),
    ("f6", lost_output, "UPDATE fanin.staged_output SET idx = 5"),
    ("e2", wanted, "UPDATE fanin.effect SET attempt = 2"),
    ("e2", wanted, "UPDATE fanin.effect SET idx = 1"),
    ("e2", wanted, "UPDATE fanin.effect SET idx = 7"),
    ("e3", wanted, "UPDATE fanin.effect SET calls = 2"),
    ("e3", wanted, "UPDATE fanin.effect SET calls = 1"),
    ("e4", calling, "UPDATE fanin.effect SET claim_id = NULL"),
    ("e4", calling, "UPDATE fanin.effect SET calls = 0"),
    ("e4", wanted, "UPDATE fanin.effect SET status = 'unknown', settled_at = 1"),
    ("e4", wanted, "UPDATE fanin.effect SET doubtful = true"),
    ("o1", ended, "UPDATE fanin.outbox SET event_key = 'job/' || job_id || '/finished/2'"),
    ("o1", ended, "UPDATE fanin.outbox SET event_key = 'job/' || job_id || '/completed'"),
    ("o1", telling, "UPDATE fanin.outbox SET event_key = 'job/' || job_id || '/progress/1/7' WHERE seq = 2"),
    ("o1", telling, "UPDATE fanin.outbox SET event_key = 'job/x/failed/1/0' WHERE type = 'part.failed'"),
    ("o2", telling, "UPDATE fanin.outbox SET event_key = 'job/' || job_id || '/failed/1/1' WHERE type = 'part.failed'"),
    ("o3", telling, "UPDATE fanin.job SET progress_at = NULL"),
    ("o3", telling, "UPDATE fanin.job SET progress_every = NULL"),
    ("o3", ended, "UPDATE fanin.job SET progress_at = 1"),
    ("o4", ended, "UPDATE fanin.outbox SET status = 'published'"),
    ("o4", delivered, "UPDATE fanin.outbox SET status = 'waiting'"),
    ("o5", taken, "UPDATE fanin.outbox SET claim_id = NULL"),
    ("o5", taken, "UPDATE fanin.outbox SET tries = 0"),
    ("o6", ended, "UPDATE fanin.outbox SET seq = 2"),
    ("o7", twice, "UPDATE fanin.outbox SET status = 'published', published_at = 1 WHERE seq = 2"),
    ("o8", parked, "UPDATE fanin.outbox SET error = NULL"),
    ("o8", parked, "UPDATE fanin.outbox SET parked_at = NULL"),
    ("k1", scheduled, "UPDATE fanin.job SET step = 'at/weekly'"),
    ("k1", scheduled, "UPDATE fanin.job SET step = NULL"),
    ("k2", scheduled, "UPDATE fanin.schedule SET mark = 1"),
    ("k3", scheduled, "UPDATE fanin.firing SET job_id = (SELECT job_id FROM fanin.schedule)"),
    ("w1", in_flow, "UPDATE fanin.flow SET running = 2"),
    ("w1", in_flow, "UPDATE fanin.flow SET running = 0"),
    ("w2", in_flow, "UPDATE fanin.flow_step SET job_id = flow_id"),
    ("w2", compensated, "UPDATE fanin.flow_step SET status = 'undoing' WHERE n = 0"),
    ("w3", compensated, "UPDATE fanin.flow_step SET status = 'waiting' WHERE n = 1"),
    ("w3", in_flow, "UPDATE fanin.flow SET status = 'completed', finished_at = 1"),
    ("w4", compensated, "UPDATE fanin.flow_step SET status = 'done' WHERE n = 0"),
    ("w4", compensated, "UPDATE fanin.flow_step SET status = 'manual' WHERE n = 0"),
    ("w5", compensated, "UPDATE fanin.outbox SET type = 'flow.needs_attention' WHERE type = 'flow.finished'"),
    ("w5", in_flow, "UPDATE fanin.flow SET run = 2"),
    ("w6", listened, "UPDATE fanin.job SET parent_id = NULL WHERE step = 'on/t'"),
    ("w6", listened, "UPDATE fanin.job SET parent_id = (SELECT id FROM fanin.flow) WHERE flow_step = 0"),
    ("w6", listened, "UPDATE fanin.flow SET listeners = '{}'"),
    ("e5", compensated, "UPDATE fanin.effect SET status = 'unknown'"),
    ("e5", compensated, "UPDATE fanin.effect SET status = 'calling', settled_at = NULL"),
    ("e5", compensated, "UPDATE fanin.effect SET status = 'done'"),
    ("e5", compensated_below, "UPDATE fanin.effect SET status = 'done' WHERE idx = 1"),
    ("s1", running, "UPDATE fanin.job SET open_stripes = 2"),
    ("s2", two_stripes, "UPDATE fanin.job_stripe SET sealed = false WHERE stripe = 1"),
    ("s2", two_stripes, "UPDATE fanin.job_stripe SET closed = true WHERE stripe = 1"),
    ("s3", running, "UPDATE fanin.job_stripe SET sealed = false"),
    ("s3", opened, "UPDATE fanin.job_stripe SET sealed = true"),
    ("l2", running, "UPDATE fanin.part SET status = 'abandoned', ready = false "
     "WHERE status IN ('pending', 'running')"),
    ("n1", in_nested, "UPDATE fanin.job SET status = 'cancelled', open_stripes = 0 WHERE waiter_id IS NOT NULL"),
    ("n2", in_nested, "UPDATE fanin.part SET waiting = false, nested_id = NULL WHERE waiting"),
    ("h1", running, "UPDATE fanin.part SET due_at = 1000000000000, ready = false WHERE status = 'pending'"),
    ("i7", running, "UPDATE fanin.part SET due_at = due_at + 1e9, ready = false WHERE status = 'pending'"),
]  # fmt: skip


def loosen(store: Store) -> None:
    """Take away the schema's own constraints, which would refuse most of what is planted."""
    if store.dialect == "lite":
        # On the writer's connection, which is the one that plants.
        say(store, "SELECT 1")
        store._writer.execute("PRAGMA ignore_check_constraints = ON")  # type: ignore[attr-defined]
        return
    schema = store.schema  # type: ignore[attr-defined]
    found = say(
        store,
        "SELECT conrelid::regclass::text, conname FROM pg_constraint "
        "WHERE contype = 'c' AND connamespace = to_regnamespace(:schema)",
        schema=schema,
    )
    for table, name in found:
        say(store, f'ALTER TABLE {table} DROP CONSTRAINT "{name}"')


@pytest.mark.plants_corruption
@pytest.mark.parametrize(("name", "healthy", "sql"), PLANTED, ids=[f"{n}-{k}" for k, (n, _, _) in enumerate(PLANTED)])
def test_planted_corruption_is_found(store: Store, name: str, healthy: Callable[[Store], str], sql: str) -> None:
    job_id = healthy(store)
    if name == "j3":
        say(store, "DELETE FROM fanin.part WHERE job_id IN (SELECT id FROM fanin.job WHERE step IS NOT NULL)")
        sql = "DELETE FROM fanin.job WHERE step IS NOT NULL"
    assert findings(store) == set() or name == "j3"
    loosen(store)
    say(store, sql)
    assert name in findings(store)
    rows = [f for _, _, found in store.check() for f in found if f.check == name]
    assert all(f.sentence == check.CHECKS[name] for f in rows)
    assert any(job_id in map(str, f.row.values()) for f in rows)


@pytest.mark.plants_corruption
def test_a_second_successor_of_one_run_is_found(store: Store) -> None:
    job_id = ended(store)
    assert findings(store) == set()
    say(store, "UPDATE fanin.job SET step = 'then'")
    other = make(store, 1, parent_id=job_id, step="then", depth=1)
    assert other
    assert "j3" in findings(store)


def test_every_invariant_has_planted_corruption(store: Store) -> None:
    assert {name for name, _, _ in PLANTED} == set(check.CHECKS)
    assert {query.name for query in check.SQL} == set(check.CHECKS)


def test_a_database_in_every_healthy_state_has_no_finding(store: Store, clock: Clock) -> None:
    for make_it in (
        checkpointed,
        ended,
        heard,
        delivered,
        parked,
        taken,
        with_family,
        running,
        opened,
        cancelled,
        two_stripes,
        grown,
        in_flow,
        compensated,
        listened,
    ):
        make_it(store)
    make(store, 0)
    make(store, 3, delay=1_000.0)
    job_id = make(store, 5, policy=Policy(fail_fast=True), attempts=1, queue="z")
    settle(store, failed(claim(store, 1, queue="z")[0]))
    settle(store, retried(claim(store, 1)[0]))
    clock.advance(61)
    store.run(lambda: lease.wake(0))
    assert job_id
    assert findings(store) == set()
    assert all(sentence.endswith(".") for _, sentence, _ in store.check())
