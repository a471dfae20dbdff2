"""A repair puts right what does not fit the parts, once, and leaves alone what is right or cannot be known."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest

from fanin.cli.advice import ADVICE, REPAIR
from fanin.domain import limits
from fanin.domain.errors import UnknownJob
from fanin.domain.identity import NIL, new_claim_id
from fanin.domain.model import Verdict
from fanin.domain.policy import Policy
from fanin.domain.repairs import Repaired
from fanin.protocol import close, pause
from fanin.protocol import repair as room
from fanin.protocol.deeds import Deed
from fanin.runtime.purge import purge
from fanin.runtime.repair import repair
from fanin.stores.base import Store
from tests.protocol import flows, test_nested
from tests.protocol.helpers import (
    THEN,
    Clock,
    cancel,
    claim,
    claim_all,
    done,
    ending,
    events,
    failed,
    job,
    listeners,
    make,
    make_open,
    part,
    publish,
    run_all,
    say,
    settle,
    states,
    successors,
    sweep_all,
    verdicts,
)
from tests.protocol.test_check import PLANTED, findings, loosen, opened, running, two_stripes

REPAIRED = [name for name, advice in ADVICE.items() if advice == REPAIR]


def stripes(store: Store, job_id: str) -> list[Any]:
    return sorted(
        say(
            store,
            "SELECT stripe, created, remaining, succeeded, failed FROM fanin.job_stripe WHERE job_id = :job_id",
            job_id=job_id,
        )
    )


def logged(store: Store) -> int:
    return int(say(store, "SELECT count(*) FROM fanin.repair")[0][0])


def written(store: Store, locks: bool = False) -> Any:
    """What tells whether a row was written anew (or locked): its version on PostgreSQL, the changes of the file on
    SQLite."""
    if store.dialect == "lite":
        say(store, "SELECT 1")
        connection = store._writer  # type: ignore[attr-defined]
        return connection.total_changes(), connection.execute("PRAGMA data_version").fetchone()
    tables = ("job", "job_stripe", "part", "outbox", "job_log", "attempt_log", "repair", "flow", "flow_step")
    columns = "ctid::text, xmin::text" + (", xmax::text" if locks else "")
    return {t: sorted(say(store, f"SELECT {columns} FROM fanin.{t}")) for t in tables}


def plant(store: Store, *texts: str) -> None:
    loosen(store)
    for text in texts:
        say(store, text)


# What is right stays as it is.


def everything_healthy(store: Store) -> None:
    """Jobs in each state, with parts in each state."""
    running(store)
    opened(store)
    two_stripes(store)
    make(store, 3, delay=1_000.0)
    make(store, 0, listeners=listeners("one"))
    cancel(store, make(store, 2))
    paused = make(store, 3, queue="z")
    store.run(partial(pause.pause, 0, paused, Deed(new_claim_id())))
    while store.run(partial(pause.walk, 0, paused)):
        pass
    make(store, 2, width=5, queue="z")
    test_nested.waiting(store)
    flows.start(store, {"a": "", "b": "a"})


def test_of_a_healthy_database_no_row_is_written(store: Store, clock: Clock) -> None:
    everything_healthy(store)
    clock.advance(30)
    before, unlocked = written(store), written(store, locks=True)
    jobs = [str(row[0]) for row in say(store, "SELECT id FROM fanin.job")]
    found = repair(store)
    assert (found.repaired, found.damaged, found.repairs) == (0, 0, [])
    assert found.looked >= 7
    for job_id in jobs:
        assert repair(store, job_id) == Repaired(looked=1)
    assert written(store, locks=True) == unlocked, "and none is locked"
    for job_id in jobs:
        assert store.run(partial(room.recount, 0, job_id, new_claim_id())) == room.Recounted([], False)
        assert store.run(partial(room.mend, 0, job_id, new_claim_id())) == room.Mended([], None)
    assert written(store) == before


# What drifted is counted anew.


@pytest.mark.plants_corruption
@pytest.mark.parametrize("drift", ["remaining = remaining + 1, created = created + 1", "remaining = 0, created = 2",
    "remaining = 1, succeeded = 2", "failed = 0, succeeded = 2", "abandoned = 4, created = 8", "spawned = 3",
])  # fmt: skip
def test_a_counter_is_written_as_its_parts_say_and_the_job_goes_on(store: Store, drift: str) -> None:
    job_id = make(store, 4, policy=Policy(tolerate=1), then=THEN)
    one, two, *held = claim(store)
    settle(store, done(one), failed(two))
    plant(store, f"UPDATE fanin.job_stripe SET {drift}")
    assert findings(store) >= {"c1"}
    found = repair(store)
    assert (found.repaired, found.ended, found.damaged, [line.what for line in found.repairs]) == (1, 0, 0, ["stripe"])
    assert stripes(store, job_id) == [(0, 4, 2, 1, 1)]
    assert findings(store) == set()
    before = written(store)
    assert repair(store) == Repaired(looked=1)
    assert written(store) == before, "the second pass is empty"
    assert verdicts(store, *map(done, held))[-1] is Verdict.LAST
    assert ending(store, job_id) == ("completed", "with_failures")


@pytest.mark.plants_corruption
def test_each_counter_of_a_job_is_repaired_and_those_that_are_right_are_not_written(store: Store) -> None:
    job_id = make(store, 128, stripes=2)
    plant(store, "UPDATE fanin.job_stripe SET remaining = remaining - 1, succeeded = 1 WHERE stripe = 1")
    untouched = "SELECT xmin::text FROM fanin.job_stripe WHERE stripe = 0" if store.dialect == "pg" else "SELECT 1"
    before = say(store, untouched)
    (line,) = repair(store).repairs
    assert (line.job, line.what, line.which) == (job_id, "stripe", 1)
    assert (line.before, line.after) == ({"remaining": 63, "succeeded": 1}, {"remaining": 64, "succeeded": 0})
    assert str(line) == "counter 1 repaired: remaining 63 → 64, succeeded 1 → 0"
    assert say(store, untouched) == before


@pytest.mark.plants_corruption
@pytest.mark.parametrize(
    ("name", "healthy", "sql"),
    [row for row in PLANTED if row[0] in REPAIRED and "DELETE" not in row[2]],
    ids=[f"{n}-{k}" for k, (n, _, sql) in enumerate(PLANTED) if n in REPAIRED and "DELETE" not in sql],
)
def test_what_the_check_says_is_to_be_repaired_is_repaired(
    store: Store, name: str, healthy: Callable[[Store], str], sql: str
) -> None:
    healthy(store)
    plant(store, sql)
    assert name in findings(store)
    dry = {str(row[0]): repair(store, str(row[0]), dry_run=True) for row in say(store, "SELECT id FROM fanin.job")}
    assert any(found.repaired for found in dry.values())
    assert logged(store) == 0
    for job_id, expected in dry.items():
        found = repair(store, job_id)
        assert (found.repaired, found.damaged) == (expected.repaired, expected.damaged)
    assert name not in findings(store)
    assert logged(store) > 0
    rows = say(store, "SELECT what, which, before, after, at FROM fanin.repair")
    assert all(msgspec.json.decode(before) != msgspec.json.decode(after) for _, _, before, after, _ in rows)
    for job_id in dry:
        assert repair(store, job_id).repaired == 0, "the second pass is empty"
    assert logged(store) == len(rows)


@pytest.mark.plants_corruption
@pytest.mark.parametrize(
    ("name", "healthy", "sql"),
    [row for row in PLANTED if row[0] not in REPAIRED],
    ids=[f"{n}-{k}" for k, (n, _, _) in enumerate(PLANTED) if n not in REPAIRED],
)
def test_what_the_check_leaves_to_a_person_breaks_no_other_rule_by_a_repair(
    store: Store, name: str, healthy: Callable[[Store], str], sql: str
) -> None:
    healthy(store)
    plant(store, sql)
    before = findings(store)
    for (job_id,) in say(store, "SELECT id FROM fanin.job"):
        repair(store, str(job_id))
    assert findings(store) <= before


# A job that should have ended ends, once.


def unended(store: Store, **options: Any) -> str:
    """A job of three parts that have all ended, as if nobody had counted the last of them."""
    job_id = make(store, 3, **{"then": THEN, **options})
    held = claim_all(store)
    settle(store, *map(done, held[:2]))
    plant(store, "UPDATE fanin.part SET status = 'succeeded', result = '1', ready = false WHERE idx = 2")
    return job_id


@pytest.mark.plants_corruption
def test_a_job_whose_parts_have_all_ended_ends_with_its_event_successor_and_listeners(store: Store) -> None:
    job_id = unended(store, listeners=listeners("one", "two"))
    assert findings(store) == {"c1", "l2"}
    found = repair(store)
    assert (found.repaired, found.ended, found.damaged) == (1, 1, 0)
    assert ending(store, job_id) == ("completed", "all_ok")
    assert len(successors(store, job_id)) == 3
    (event,) = events(store, job_id)
    assert (event["succeeded"], event["ended_by"]) == (3, None)
    assert findings(store) == set()
    assert repair(store, job_id) == Repaired(looked=1)
    last = found.repairs[-1]
    assert (last.what, last.after) == ("ended", {"status": "completed", "outcome": "all_ok"})
    assert str(last) == "ended by repair: completed, all_ok"


@pytest.mark.plants_corruption
def test_it_ends_by_its_policy(store: Store) -> None:
    job_id = make(store, 3, policy=Policy(tolerate=1), then=THEN)
    held = claim_all(store)
    settle(store, done(held[0]))
    plant(store, "UPDATE fanin.part SET status = 'failed', ready = false WHERE idx > 0")
    repair(store)
    assert ending(store, job_id) == ("failed", "too_many_failures")
    assert successors(store, job_id) == []


@pytest.mark.plants_corruption
def test_a_job_of_no_parts_that_was_left_running_ends(store: Store) -> None:
    job_id = make_open(store)
    plant(
        store,
        "UPDATE fanin.job SET status = 'running', sealed_parts = 0, open_stripes = 1",
        "UPDATE fanin.job_stripe SET sealed = true",
    )
    repair(store)
    assert ending(store, job_id) == ("completed", "all_ok")


@pytest.mark.plants_corruption
def test_the_end_of_a_nested_job_ends_the_part_that_waits_and_the_job_above(store: Store) -> None:
    held, nested = test_nested.waiting(store, above=1)
    claims = claim_all(store)
    settle(store, *map(done, claims[:-1]))
    last = claims[-1]
    assert last.job_id == nested
    plant(
        store,
        f"UPDATE fanin.part SET status = 'succeeded', result = '1', ready = false "
        f"WHERE job_id = '{last.job_id}' AND idx = {last.idx}",
    )
    repair(store)
    assert ending(store, nested)[0] == "completed"
    assert part(store, held.job_id, held.idx)["status"] == "succeeded"
    assert ending(store, held.job_id)[0] == "completed"


@pytest.mark.plants_corruption
def test_the_end_of_a_step_lets_its_flow_go_on(store: Store) -> None:
    flow_id = flows.start(store, {"a": "", "b": "a"})
    held = flows.held(store, flow_id, "a")
    plant(
        store,
        f"UPDATE fanin.part SET status = 'succeeded', result = '1', ready = false WHERE job_id = '{held.job_id}'",
    )
    repair(store)
    assert flows.states(store, flow_id) == {"a": "done", "b": "running"}
    assert findings(store) == set()


@pytest.mark.plants_corruption
def test_a_job_of_which_the_event_of_the_end_stands_does_not_end_again(store: Store) -> None:
    job_id = make(store, 1, then=THEN)
    run_all(store)
    plant(store, "UPDATE fanin.job SET status = 'running', outcome = NULL, finished_at = NULL, open_stripes = 1 "
        f"WHERE id = '{job_id}'")  # fmt: skip
    found = repair(store, job_id)
    assert (found.ended, found.damaged) == (0, 1)
    assert len(events(store, job_id)) == 1
    assert len(successors(store, job_id)) == 1


@pytest.mark.plants_corruption
def test_a_successor_that_stands_is_not_made_again_and_holds_up_no_other_job(store: Store) -> None:
    job_id = make(store, 1, then=THEN, id=NIL[:-1] + "1")
    run_all(store)
    plant(store, "UPDATE fanin.job SET status = 'running', outcome = NULL, finished_at = NULL, open_stripes = 1 "
        f"WHERE id = '{job_id}'", "DELETE FROM fanin.outbox")  # fmt: skip
    other = unended(store)
    found = repair(store)
    assert (found.ended, found.damaged, found.repaired) == (1, 1, 1)
    assert ending(store, other) == ("completed", "all_ok")
    assert job(store, job_id).status == "running"
    assert "it cannot be repaired" in str(found.repairs[0])


# What cannot be known is told.


def lacking(store: Store, parts: int = 10) -> str:
    job_id = make(store, parts, then=THEN)
    plant(store, "DELETE FROM fanin.part WHERE idx = 0")
    return job_id


@pytest.mark.plants_corruption
def test_a_job_that_lacks_a_part_is_paused_and_told_once(store: Store) -> None:
    job_id = lacking(store)
    found = repair(store)
    assert (found.repaired, found.ended, found.damaged) == (0, 0, 1)
    assert str(found.repairs[0]) == "damaged: 10 parts were planned, 9 are there; paused"
    assert job(store, job_id).paused_at is not None
    assert stripes(store, job_id) == [(0, 10, 10, 0, 0)], "the counters are left alone"
    before = written(store)
    again = repair(store)
    assert (again.damaged, str(again.repairs[0])) == (1, "damaged: 10 parts were planned, 9 are there")
    assert written(store) == before
    assert logged(store) == 1
    assert store.run(partial(pause.resume, 0, job_id, Deed(new_claim_id())))
    repair(store)
    assert job(store, job_id).paused_at is None, "who let it go on has seen what was told"
    while store.run(partial(pause.walk, 0, job_id)):
        pass
    say(store, "DELETE FROM fanin.part WHERE idx = 1")
    assert "8 are there" in str(repair(store).repairs[0])
    assert logged(store) == 2, "other damage is told again"


@pytest.mark.plants_corruption
@pytest.mark.parametrize("more", [False, True])
def test_a_job_with_another_number_of_parts_never_completes_by_a_repair(store: Store, more: bool) -> None:
    job_id = make(store, 3, then=THEN)
    settle(store, *map(done, claim_all(store)[:2]))
    if more:
        plant(store, "UPDATE fanin.part SET idx = idx + 10 WHERE idx = 0")
        columns = (
            "bucket, job_id, stripe, status, ready, queue, task, priority, turn, attempt, attempts_allowed, due_at, "
            "claim_id, payload, result"
        )
        say(store, f"INSERT INTO fanin.part ({columns}, idx) SELECT {columns}, 0 FROM fanin.part WHERE idx = 10")
        say(store, "UPDATE fanin.part SET status = 'succeeded', result = '1', ready = false")
    else:
        plant(store, "DELETE FROM fanin.part WHERE idx = 2")
    found = repair(store)
    assert f"3 parts were planned, {4 if more else 2} are there" in str(found.repairs[0])
    assert (job(store, job_id).status, events(store, job_id), successors(store, job_id)) == ("running", [], [])


@pytest.mark.plants_corruption
def test_a_growing_job_that_lacks_a_spawned_part_is_damaged(store: Store) -> None:
    from tests.protocol.test_check import grown

    grown(store)
    plant(store, "DELETE FROM fanin.part WHERE idx = 2")
    assert "3 parts were added to it, 2 are there" in str(repair(store).repairs[0])


@pytest.mark.plants_corruption
@pytest.mark.parametrize("sql", ["DELETE FROM fanin.job_stripe WHERE stripe = 1", "UPDATE fanin.part SET stripe = 7"])
def test_a_job_that_lacks_a_counter_is_damaged(store: Store, sql: str) -> None:
    two_stripes(store)
    plant(store, sql)
    found = repair(store)
    assert (found.repaired, found.damaged) == (0, 1)
    assert "counters are there" in str(found.repairs[0])


@pytest.mark.plants_corruption
def test_an_open_job_that_nobody_gives_up_is_told_and_not_touched(store: Store, clock: Clock) -> None:
    job_id = opened(store)
    say(store, f"UPDATE fanin.job SET give_up_at = give_up_at - {limits.OPEN_SECONDS} - 1000")
    assert repair(store) == Repaired(looked=1), "workers give it up"
    clock.advance(limits.OVERDUE_SECONDS)
    found = repair(store)
    assert (found.repaired, found.damaged) == (0, 1)
    assert (job(store, job_id).status, job(store, job_id).paused_at) == ("open", None)
    repair(store)
    assert logged(store) == 1


@pytest.mark.plants_corruption
def test_when_a_person_has_ended_what_was_damaged_its_counters_follow_its_parts(store: Store) -> None:
    job_id = lacking(store, 3)
    repair(store)
    assert cancel(store, job_id)
    sweep_all_once(store)
    assert store.read(partial(close.unswept, 0)), "a counter says that a part lives which is not there"
    found = repair(store)
    assert (found.repaired, found.damaged) == (1, 0)
    assert store.read(partial(close.unswept, 0)) == []
    assert (job(store, job_id).abandoned_parts, states(store, job_id)) == (2, ["abandoned"] * 2)
    assert findings(store) == {"c2"}


def sweep_all_once(store: Store) -> None:
    for job_id, stripe in store.read(lambda: close.unswept(0)):
        store.run(partial(close.sweep, 0, job_id, stripe))


@pytest.mark.plants_corruption
def test_live_parts_of_a_closed_job_that_no_counter_knows_are_swept_after_a_repair(store: Store) -> None:
    job_id = make(store, 3)
    cancel(store, job_id)
    plant(store, "UPDATE fanin.job_stripe SET remaining = 0, abandoned = 3")
    assert repair(store).looked == 0, "an ended job is looked at when it is named"
    assert repair(store, job_id).repaired == 1
    assert sweep_all(store) == 3
    assert findings(store) == set()


# The pass.


@pytest.mark.plants_corruption
def test_every_job_that_goes_on_is_looked_at_page_by_page(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REPAIR_PAGE_MAX", 2)
    jobs = [make(store, 2) for _ in range(5)]
    cancelled = [make(store, 1) for _ in range(3)]
    for job_id in cancelled:
        cancel(store, job_id)
    make(store, 0)
    plant(store, "UPDATE fanin.job_stripe SET remaining = remaining + 1, created = created + 1")
    looked: list[int] = []
    found = repair(store, tell=lambda so_far: looked.append(so_far.looked))
    assert looked == list(range(1, 9))
    assert {line.job for line in found.repairs} == {*jobs, *cancelled}
    assert found.repaired == 8


def test_an_unknown_job_is_refused(store: Store) -> None:
    with pytest.raises(UnknownJob):
        repair(store, NIL)
    assert store.run(partial(room.recount, 0, NIL, new_claim_id())) == room.Recounted([], False)


@pytest.mark.plants_corruption
def test_what_was_repaired_goes_with_its_job(store: Store) -> None:
    job_id = make(store, 1)
    plant(store, "UPDATE fanin.job_stripe SET created = 2, remaining = 2")
    repair(store)
    run_all(store)
    publish(store)
    assert logged(store) == 1
    assert purge(store, 0.0).jobs == 1
    assert logged(store) == 0
    assert job_id
