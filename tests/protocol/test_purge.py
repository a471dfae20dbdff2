"""Old trees go as a whole, or not at all; what they leave goes in portions; nothing that somebody needs is touched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fanin.domain import identity
from fanin.domain.errors import NotAllowedNow, UnknownJob
from fanin.domain.flows import BATCH
from fanin.domain.model import Claim, Verdict
from fanin.protocol import nest, outbox, outputs, purge, redrive, split, submit
from fanin.protocol.purge import Tree
from fanin.stores.base import Store
from fanin.testing.clock import Clock as Freezer
from fanin.testing.invariants import check_all
from fanin.testing.state import dump
from tests.protocol.helpers import (
    THEN,
    append,
    cancel,
    claim,
    claim_all,
    done,
    failed,
    listeners,
    make,
    make_open,
    new_job,
    retried,
    run_all,
    say,
    settle,
    sweep_all,
    verdicts,
)

NOON = 1_700_000_000.0
DAY = 86_400.0
RELAY = "00000000-0000-4000-8000-00000000000a"


def publish(store: Store) -> None:
    while events := store.run(lambda: outbox.take(0, 100, 60.0, RELAY, "r")):
        said = [outbox.Said(event.key, "mark") for event in events]
        store.run(lambda said=said: outbox.settle(0, RELAY, said))  # type: ignore[misc]


def ended(store: Store, parts: int = 2, **options: Any) -> str:
    """A job with a failure and its successor, all ended and told."""
    job_id = make(store, parts, then=THEN, **options)
    first, *rest = claim_all(store)
    settle(store, retried(first), *map(done, rest))
    run_all(store)
    run_all(store, queue=THEN.queue, tasks=[THEN.task])
    publish(store)
    return job_id


def go(store: Store, root: str, age: float = 0.0, **options: Any) -> Tree:
    members = store.read(lambda: purge.tree([0], (0, root)))
    return store.run(lambda: purge.purge([0], members, age, **options))


def clear(store: Store) -> int:
    """Remove what purged jobs have left. How many portions it took."""
    portions = 0
    for job_id in store.read(lambda: purge.leftovers(0)):
        going: purge.Member | None = (0, job_id)
        while going is not None:
            going = portion(store, going)
            portions += 1
    return portions


def portion(store: Store, home: purge.Member) -> purge.Member | None:
    return store.run(lambda: purge.portion(1, home))


def test_a_tree_goes_as_a_whole_and_nothing_of_it_is_left(store: Store) -> None:
    job_id = ended(store)
    other = make(store, 1)
    found = go(store, job_id)
    assert (found.jobs, found.parts, found.events, found.unsent, found.kept) == (2, 3, 2, 0, None)
    check_all(store)
    assert [row[0] for row in say(store, "SELECT id FROM fanin.job")] == [other]
    assert len(store.read(lambda: purge.leftovers(0))) == 2
    clear(store)
    rows = {table: len(found) for table, found in dump(store).items() if found}
    assert rows == {"job": 1, "job_stripe": 1, "part": 1}


def test_it_is_found_when_all_of_it_is_old_enough(store: Store) -> None:
    clock = Freezer(store)
    clock.freeze(NOON)
    job_id = ended(store)
    clock.freeze(NOON + DAY - 1)
    assert store.read(lambda: purge.old_roots(0, DAY)) == []
    assert go(store, job_id, DAY).kept == "live"
    clock.freeze(NOON + DAY)
    assert [found for _, found in store.read(lambda: purge.old_roots(0, DAY))] == [job_id]
    assert go(store, job_id, DAY).kept is None
    clear(store)


def test_the_pages_of_old_roots_give_each_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(purge, "PAGE_ROOTS", 2)
    Freezer(store).freeze(NOON)  # all at one moment: the id decides
    jobs = sorted(make(store, 0) for _ in range(5))
    page = store.read(lambda: purge.old_roots(0, 0.0))
    found = []
    while page:
        found += [job_id for _, job_id in page]
        page = store.read(lambda page=page: purge.old_roots(0, 0.0, page[-1]))  # type: ignore[misc]
    assert found == jobs


def is_running(store: Store) -> str:
    job_id = make(store, 1)
    claim(store)
    return job_id


def is_open(store: Store) -> str:
    job_id = make_open(store)
    append(store, job_id, 0, 1)
    run_all(store)
    return job_id


def is_not_swept(store: Store) -> str:
    job_id = make(store, 2)
    claim(store, 1)
    cancel(store, job_id)
    publish(store)
    return job_id


def successor_waits(store: Store) -> str:
    job_id = make(store, 1, then=THEN)
    run_all(store)
    publish(store)
    return job_id


def event_waits(store: Store) -> str:
    return make(store, 0)


def event_is_parked(store: Store) -> str:
    job_id = make(store, 0)
    (event,) = store.run(lambda: outbox.take(0, 1, 60.0, RELAY, "r"))
    store.run(lambda: outbox.settle(0, RELAY, [outbox.Said(event.key, "park", error="no")]))
    return job_id


def event_is_claimed(store: Store) -> str:
    job_id = make(store, 0)
    store.run(lambda: outbox.take(0, 1, 60.0, RELAY, "r"))
    return job_id


def leave(store: Store, held: Claim, name: str = "a") -> None:
    assert store.run(lambda: outputs.stage(held, name, "/x"))
    assert store.run(lambda: outputs.mark_ready(held, name, 1, "d"))


def output_is_lost(store: Store) -> str:
    job_id = make(store, 1)
    (held,) = claim(store)
    leave(store, held)
    settle(store, failed(held))
    publish(store)
    return job_id


def output_was_swept(store: Store) -> str:
    job_id = output_is_lost(store)
    lost = store.read(lambda: outputs.lost(0, 0.0))
    assert store.run(lambda: outputs.mark_swept(0, lost)) == 1
    return job_id


def effect_in(status: str) -> Callable[[Store], str]:
    def stage(store: Store) -> str:
        job_id = make(store, 1)
        run_all(store)
        publish(store)
        settled = "fanin.clock()" if status in ("unknown", "failed") else "NULL"
        say(
            store, "INSERT INTO fanin.effect (bucket, job_id, idx, name, mode, status, relayed, attempt, calls, "
            f"calls_allowed, due_at, at, settled_at, request) SELECT 0, '{job_id}', 0, 'mail', 'probe', '{status}', "
            f"true, 1, 0, 3, fanin.clock(), fanin.clock(), {settled}, '1'",
        )  # fmt: skip
        return job_id

    return stage


STAYS: dict[str, tuple[Callable[[Store], str], str, bool]] = {
    "is running": (is_running, "live", False),
    "is open": (is_open, "live", False),
    "is not swept": (is_not_swept, "live", False),
    "has a successor that waits": (successor_waits, "live", False),
    "has an event that waits": (event_waits, "events", True),
    "has a parked event": (event_is_parked, "events", True),
    "has an event that a relay holds": (event_is_claimed, "events", False),
    "has an output that cannot count": (output_is_lost, "outputs", False),
    "has an output to be removed once more": (output_was_swept, "outputs", False),
    "has an effect that waits": (effect_in("registered"), "effects", False),
    "has an unknown effect": (effect_in("unknown"), "effects", True),
    "has a failed effect": (effect_in("failed"), "effects", True),
}
"""What keeps a tree, the reason that is said, and whether ``unsent`` takes it along."""


@pytest.mark.parametrize("name", STAYS)
def test_a_tree_stays_that(store: Store, name: str) -> None:
    stage, reason, taken = STAYS[name]
    job_id = stage(store)
    before = dump(store)
    assert go(store, job_id, outputs=True).kept == reason
    assert dump(store) == before
    found = go(store, job_id, outputs=True, unsent=True)
    assert found.kept == (None if taken else reason)
    if not taken:
        assert dump(store) == before
    clear(store)
    say(store, "DELETE FROM fanin.effect")


def test_a_job_that_came_meanwhile_keeps_the_tree(store: Store) -> None:
    """A handler of a closed job, which nobody could stop yet, has started one."""
    job_id = ended(store)
    members = store.read(lambda: purge.tree([0], (0, job_id)))
    child = new_job(store, parent_id=job_id, root_id=job_id, depth=1)
    store.run(lambda: submit.create(child, 1, lambda: [["1"]]))
    before = dump(store)
    assert store.run(lambda: purge.purge([0], members, 0.0)).kept == "live"
    assert dump(store) == before


def test_a_purge_said_again_finds_nothing(store: Store) -> None:
    job_id = ended(store)
    members = store.read(lambda: purge.tree([0], (0, job_id)))
    assert store.run(lambda: purge.purge([0], members, 0.0)).kept is None
    after = dump(store)
    assert store.run(lambda: purge.purge([0], members, 0.0)).kept == "live"
    assert dump(store) == after
    clear(store)


def test_a_redrive_or_a_report_that_comes_after_it_changes_nothing(store: Store) -> None:
    job_id = make(store, 2)
    early, late = claim(store)
    cancel(store, job_id)
    sweep_all(store)
    publish(store)
    assert go(store, job_id).kept is None
    with pytest.raises(UnknownJob):
        store.run(lambda: redrive.redrive(0, job_id, 1, 3))
    assert verdicts(store, done(early)) == [Verdict.CLOSED]
    clear(store)
    before = dump(store)
    assert verdicts(store, done(late)) == [Verdict.UNKNOWN]
    assert dump(store) == before
    assert all(not rows for rows in before.values())


def test_the_key_of_a_purged_job_is_free_again_once_its_rows_are_gone(store: Store) -> None:
    job_id = ended(store, key="nightly")
    go(store, job_id)
    for again in (lambda: make(store, 3, key="nightly"), lambda: make_open(store, key="nightly")):
        with pytest.raises(NotAllowedNow, match="'nightly' was purged, and its rows are still being removed"):
            again()
    clear(store)
    assert make(store, 3, key="nightly") == job_id


def followed(store: Store) -> tuple[str, str]:
    """The job of the key, and one below it."""
    job_id = ended(store, key="nightly")
    return job_id, identity.successor_id(job_id, "then", 1)


def listened_to(store: Store) -> tuple[str, str]:
    job_id = make(store, 1, key="nightly", listeners=listeners("bell"))
    run_all(store)
    run_all(store, queue="joins", tasks=["bell"])
    return job_id, identity.successor_id(job_id, "on/bell", 1)


def waited(store: Store) -> tuple[str, str]:
    """A part of it ended with a job of its own."""
    job_id = make(store, 1, key="nightly")
    (held,) = claim(store)
    below = new_job(store, id=identity.nested_id(job_id, 0), parent_id=job_id, root_id=job_id, depth=1,
                    waiter_id=job_id, waiter_idx=0)  # fmt: skip
    store.run(lambda: nest.nest(held, below, 2, lambda: [["1", "2"]]))
    run_all(store)
    return job_id, below.id


def split_up(store: Store) -> tuple[str, str]:
    """Its parts are batches, each a job of its own."""
    job = new_job(store, key="nightly", batch=2)
    store.run(lambda: split.create(job, 3, lambda: [["1", "2", "3"]]))
    for held in claim_all(store, tasks=[BATCH]):
        below = new_job(store, id=identity.nested_id(job.id, held.idx))
        store.run(lambda held=held, below=below: nest.rejoin(held, below))  # type: ignore[misc]
    run_all(store)
    return job.id, identity.nested_id(job.id, 1)


def started(store: Store) -> tuple[str, str]:
    """Its handler has started another."""
    job_id = make(store, 1, key="nightly")
    below = make(store, 2, id=identity.child_id(job_id, 0, 0), parent_id=job_id, root_id=job_id, depth=1)
    run_all(store)
    return job_id, below


def in_another_tree(store: Store) -> tuple[str, str]:
    root = make(store, 1)
    job_id = make(store, 1, key="nightly", parent_id=root, root_id=root, depth=1, then=THEN)
    run_all(store)
    run_all(store, queue=THEN.queue, tasks=[THEN.task])
    return job_id, identity.successor_id(job_id, "then", 1)


@pytest.mark.parametrize("begun", [False, True], ids=["all is left", "only its name is left"])
@pytest.mark.parametrize(
    "stands", [followed, listened_to, waited, split_up, started, in_another_tree], ids=lambda one: one.__name__
)
def test_a_key_is_taken_as_long_as_rows_of_a_job_below_it_are_left(
    store: Store, stands: Callable[[Store], tuple[str, str]], begun: bool
) -> None:
    """The jobs below a new one would meet them: their ids follow from its own."""
    job_id, below = stands(store)
    publish(store)
    ((_, root),) = store.read(lambda: purge.old_roots(0, 0.0))
    assert go(store, root).kept is None
    check_all(store)
    for left in store.read(lambda: purge.leftovers(0)):  # a purge that does not reach what is below, or is killed there
        going: purge.Member | None = (0, left) if left != below else None
        while going is not None:
            going = portion(store, going)
    assert say(store, f"SELECT count(*) FROM fanin.part WHERE job_id = '{job_id}'") == [(0,)]
    assert {job_id, below} <= set(store.read(lambda: purge.leftovers(0)))
    if begun:
        assert portion(store, (0, below)) == (0, below)
    for again in (lambda: make(store, 3, key="nightly"), lambda: make_open(store, key="nightly")):
        with pytest.raises(NotAllowedNow, match="'nightly' was purged, and its rows are still being removed"):
            again()
    check_all(store)
    clear(store)
    assert store.read(lambda: purge.leftovers(0)) == []
    assert all(not rows for rows in dump(store).values())
    assert stands(store) == (job_id, below)
    check_all(store)


def test_a_handler_that_asks_for_a_job_when_its_own_was_purged_is_refused(store: Store) -> None:
    """A zombie of a cancelled job. No purge would find that job, which had no root."""
    above = ended(store)
    wanted: dict[str, Any] = {"parent_id": above, "parent_bucket": 0, "root_id": above, "depth": 1}
    below = make(store, 1, **wanted)
    assert go(store, above).kept == "live"
    run_all(store)
    publish(store)
    members = store.read(lambda: purge.tree([0], (0, above)))
    assert (0, below) in members
    assert store.run(lambda: purge.purge([0], members, 0.0)).kept is None
    before = dump(store)
    for again in (lambda: make(store, 1, **wanted), lambda: make_open(store, **wanted)):
        with pytest.raises(NotAllowedNow, match=f"job {above}, whose handler asks for this one, has ended and was"):
            again()
    assert dump(store) == before
    clear(store)


def test_a_key_within_another_tree_is_free_before_the_tree_is_gone(store: Store) -> None:
    job_id, below = in_another_tree(store)
    publish(store)
    ((_, root),) = store.read(lambda: purge.old_roots(0, 0.0))
    assert go(store, root).kept is None
    going: purge.Member | None = (0, below)
    while going is not None and going != (0, root):
        going = portion(store, going)
    assert store.read(lambda: purge.leftovers(0)) == [root]
    assert make(store, 2, key="nightly", then=THEN) == job_id
    clear(store)
    run_all(store)
    run_all(store, queue=THEN.queue, tasks=[THEN.task])
    check_all(store)


def test_many_parts_keys_and_log_rows_go_in_portions(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(purge, "PORTION_PARTS", 10)
    job_id = make(store, 25, width=25)
    settle(store, *map(done, claim_all(store)))
    publish(store)
    go(store, job_id)
    left = []
    while portion(store, (0, job_id)):
        parts, held = (say(store, f"SELECT count(*) FROM fanin.{t}")[0][0] for t in ("part", "part_key"))
        left.append((parts, held))
        check_all(store)
    assert left == [(15, 25), (5, 25), (0, 25), (0, 15), (0, 5), (0, 0)]
    assert say(store, "SELECT * FROM fanin.leftover") == []


def test_outputs_go_before_the_parts_that_they_are_known_by(store: Store) -> None:
    job_id = make(store, 1)
    (held,) = claim(store)
    leave(store, held, "a")
    leave(store, held, "b")
    settle(store, done(held))
    publish(store)
    assert go(store, job_id, outputs=True).outputs == 2
    assert store.read(lambda: purge.leftovers(0)) == [job_id]
    assert portion(store, (0, job_id)) is None
    assert say(store, "SELECT count(*) FROM fanin.part") == [(1,)]
    found, remove = store.read(lambda: purge.left_outputs(0, job_id))
    assert ([one.name for one in found], remove) == (["a", "b"], True)
    assert store.run(lambda: purge.forget_outputs(0, job_id, found[:1])) == 1
    check_all(store)
    assert store.run(lambda: purge.forget_outputs(0, job_id, found)) == 1
    clear(store)
    assert all(not rows for rows in dump(store).values())


def test_nothing_is_removed_of_a_job_that_was_not_purged(store: Store) -> None:
    job_id = make(store, 1)
    (held,) = claim(store)
    leave(store, held)
    settle(store, done(held))
    before = dump(store)
    assert portion(store, (0, job_id)) is None
    assert store.read(lambda: purge.left_outputs(0, job_id)) == ([], False)  # its objects would be removed
    placed = [outputs.Placed(job_id, 0, held.attempt, held.claim_id, "a", "/x")]
    assert store.run(lambda: purge.forget_outputs(0, job_id, placed)) == 0
    assert dump(store) == before
