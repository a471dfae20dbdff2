"""A paused job: none of its parts is claimed, everything else goes on, and a resume brings all of them back."""

from __future__ import annotations

import pytest

from fanin.domain import limits
from fanin.domain.errors import BadOption, NotAllowedNow, UnknownJob
from fanin.domain.flows import BATCH
from fanin.domain.identity import nested_id
from fanin.domain.model import Claim
from fanin.domain.policy import Policy
from fanin.protocol import close, deeds, lease, nest, pause, read, redrive, split
from fanin.protocol.steps import Txn
from fanin.stores.base import Store
from tests.protocol.helpers import (
    QUEUE,
    TASK,
    Clock,
    append,
    cancel,
    claim,
    claim_all,
    done,
    ending,
    job,
    make,
    make_open,
    new_job,
    part,
    released,
    retried,
    run_all,
    say,
    settle,
    states,
    sweep_all,
    verdicts,
)

NOWHERE = "01980000-0000-7000-8000-000000000000"


def pauses(store: Store, job_id: str, reason: str | None = None, *, walk: bool = True) -> bool:
    did = store.run(lambda: pause.pause(0, job_id, deeds.deed("kim", reason)))
    if walk:
        walks(store, job_id)
    return did


def resumes(store: Store, job_id: str, *, walk: bool = True) -> bool:
    did = store.run(lambda: pause.resume(0, job_id, deeds.deed("kim")))
    if walk:
        walks(store, job_id)
    return did


def walks(store: Store, job_id: str) -> int:
    """To the end. How many portions it took."""
    portions = 1
    while store.run(lambda: pause.walk(0, job_id)):
        portions += 1
    return portions


def ready(store: Store, job_id: str) -> int:
    ((count,),) = say(store, f"SELECT count(*) FROM fanin.part WHERE job_id = '{job_id}' AND ready")
    return int(count)


@pytest.mark.parametrize("walk", [True, False])
def test_no_part_of_a_paused_job_is_claimed_and_all_come_back_when_it_is_resumed(store: Store, walk: bool) -> None:
    job_id, other = make(store, 5), make(store, 2)
    assert pauses(store, job_id, walk=walk)
    assert [held.job_id for held in claim_all(store)] == [other, other]
    assert job(store, job_id).paused_at is not None
    assert resumes(store, job_id)
    assert [held.idx for held in claim_all(store)] == [0, 1, 2, 3, 4]
    assert job(store, job_id).paused_at is None


def test_saying_it_again_changes_nothing(store: Store) -> None:
    job_id = make(store, 2)
    assert [pauses(store, job_id), pauses(store, job_id)] == [True, False]
    assert [resumes(store, job_id), resumes(store, job_id)] == [True, False]
    assert say(store, f"SELECT what, who FROM fanin.job_log WHERE job_id = '{job_id}' ORDER BY at, what") == [
        ("paused", "kim"), ("resumed", "kim"),
    ]  # fmt: skip


def test_what_cannot_be_paused_is_refused(store: Store) -> None:
    ended = make(store, 0)
    with pytest.raises(NotAllowedNow, match="completed: only a job that has not ended"):
        pauses(store, ended)
    with pytest.raises(UnknownJob):
        pauses(store, NOWHERE)
    with pytest.raises(UnknownJob):
        resumes(store, NOWHERE)
    with pytest.raises(BadOption, match="reason="):
        deeds.deed("kim", "x" * (limits.REASON_CHARS + 1))
    with pytest.raises(BadOption, match="by="):
        deeds.deed("\0")


def test_running_parts_go_on_and_may_end_the_job(store: Store) -> None:
    job_id = make(store, 2)
    held = claim(store)
    assert pauses(store, job_id)
    assert store.run(lambda: lease.renew(0, [(one, 60.0) for one in held])) == []
    assert [v.value for v in verdicts(store, *map(done, held))] == ["last", "last"]
    assert ending(store, job_id) == ("completed", "all_ok")
    assert job(store, job_id).paused_at is None


def test_retries_given_back_parts_and_lost_leases_of_a_paused_job_wait_too(store: Store, clock: Clock) -> None:
    job_id = make(store, 4, attempts=5)
    one, two, three, four = claim(store)
    assert pauses(store, job_id)
    settle(store, retried(one), retried(two, delay=5.0), released(three))
    clock.advance(100.0)
    assert store.run(lambda: lease.wake(0)).queues == [QUEUE]
    assert claim(store) == []
    assert resumes(store, job_id)
    assert [held.idx for held in claim(store)] == [0, 1, 2, 3]
    assert verdicts(store, done(four))[0].value == "lost"


def test_a_lease_that_runs_out_for_the_last_time_fails_the_part_all_the_same(store: Store, clock: Clock) -> None:
    job_id = make(store, 2, attempts=1)
    claim(store, 1)
    pauses(store, job_id)
    clock.advance(100.0)
    assert store.run(lambda: lease.reap(0)) == 1
    assert states(store, job_id) == ["failed", "pending"]


def test_parts_that_are_held_back_lie_in_no_way_and_keep_their_own_moment(store: Store, clock: Clock) -> None:
    job_id = make(store, 3)
    later = make(store, 2, delay=50.0)
    assert pauses(store, job_id)
    assert pauses(store, later)
    assert ready(store, job_id) == 0
    assert store.read(lambda: lease.any_ready(0, QUEUE)) is False
    look = store.read(lambda: lease.look(0))
    assert look.due_in is None
    assert not look.walking
    clock.advance(20.0)
    assert resumes(store, job_id)
    assert resumes(store, later)
    assert (ready(store, job_id), ready(store, later)) == (3, 0)
    assert part(store, later, 0)["due_at"] < limits.HELD_SECONDS
    clock.advance(31.0)
    store.run(lambda: lease.wake(0))
    assert ready(store, later) == 2


def test_a_wide_job_is_held_back_and_let_go_in_portions_by_whoever_walks(store: Store) -> None:
    job_id = make(store, 2 * limits.CHUNK_PARTS + 1, stripes=2 if store.dialect == "pg" else 1)
    assert pauses(store, job_id, walk=False)
    assert store.read(lambda: lease.look(0)).soonest == 0.0
    assert store.read(lambda: pause.walking(0)) == [job_id]
    assert store.run(lambda: pause.walk(0, job_id)) is True
    assert ready(store, job_id) == limits.CHUNK_PARTS + 1
    assert walks(store, job_id) == 2
    assert (ready(store, job_id), store.read(lambda: pause.walking(0))) == (0, [])
    assert resumes(store, job_id, walk=False)
    assert claim(store) == []  # nothing has been let go yet
    assert walks(store, job_id) == 3
    assert ready(store, job_id) == 2 * limits.CHUNK_PARTS + 1


def test_a_job_that_is_paused_again_on_the_way_ends_as_it_was_told_last(store: Store) -> None:
    job_id = make(store, limits.CHUNK_PARTS + 5)
    pauses(store, job_id)
    resumes(store, job_id, walk=False)
    store.run(lambda: pause.walk(0, job_id))
    assert ready(store, job_id) == limits.CHUNK_PARTS
    pauses(store, job_id)
    assert ready(store, job_id) == 0
    resumes(store, job_id, walk=False)
    pauses(store, job_id, walk=False)
    resumes(store, job_id)
    assert ready(store, job_id) == limits.CHUNK_PARTS + 5


def test_the_deadline_of_a_paused_job_fires(store: Store, clock: Clock) -> None:
    job_id = make(store, 2, give_up_after=30.0, policy=Policy(give_up="proceed"))
    pauses(store, job_id)
    clock.advance(31.0)
    assert store.run(lambda: close.give_up(0, job_id))
    assert ending(store, job_id) == ("completed", "partial")


@pytest.mark.parametrize("swept", [True, False])
def test_a_run_after_a_paused_one_runs_all_of_its_parts(store: Store, swept: bool) -> None:
    job_id = make(store, 3)
    pauses(store, job_id)
    cancel(store, job_id)
    if swept:
        sweep_all(store)
    assert store.run(lambda: redrive.redrive(0, job_id, 1, 3)) == 2
    walks(store, job_id)
    assert len(run_all(store)) == 3
    assert ending(store, job_id) == ("completed", "all_ok")


def test_parts_added_to_a_paused_job_are_held_back_too(store: Store) -> None:
    job_id = make_open(store)
    append(store, job_id, 0, 2)
    pauses(store, job_id)
    append(store, job_id, 2, 3)
    assert claim(store) == []
    walks(store, job_id)
    assert ready(store, job_id) == 0
    append(store, job_id, 5, 1)
    assert resumes(store, job_id)
    assert len(claim(store)) == 6


def test_a_part_that_is_held_back_counts_as_no_backlog(store: Store) -> None:
    job_id = make(store, 2)

    def backlog() -> bool:
        return store.read(lambda: read.backlog([0], [QUEUE], [TASK]))

    (held,) = claim(store, 1)
    pauses(store, job_id, walk=False)
    assert backlog()  # one is running
    settle(store, done(held))
    assert not backlog()
    walks(store, job_id)
    assert not backlog()
    resumes(store, job_id)
    assert backlog()


def test_a_part_that_was_never_held_back_keeps_its_moment_when_the_job_is_resumed(store: Store) -> None:
    job_id = make(store, 2, delay=50.0)
    due = part(store, job_id, 0)["due_at"]
    pauses(store, job_id, walk=False)
    resumes(store, job_id)
    assert (ready(store, job_id), part(store, job_id, 0)["due_at"]) == (0, due)


def test_what_a_closed_job_left_behind_is_not_let_go_after_it_was_swept(store: Store) -> None:
    job_id = make(store, 2)
    pauses(store, job_id)
    cancel(store, job_id)
    sweep_all(store)
    walks(store, job_id)
    assert (ready(store, job_id), states(store, job_id)) == (0, ["abandoned", "abandoned"])


def test_parts_that_are_added_to_a_job_that_is_not_paused_begin_no_walk(store: Store) -> None:
    job_id = make_open(store)
    append(store, job_id, 0, 2)
    assert store.read(lambda: pause.walking(0)) == []


def test_a_walk_that_was_overtaken_takes_its_portion_back(store: Store) -> None:
    """Said alone: the job was paused when the walk began, and has been resumed since, or another walker was here."""
    job_id = make(store, 2)
    pauses(store, job_id, walk=False)

    def advance(first: int, paused: bool) -> int:
        def txn() -> Txn[int]:
            rows = yield pause.SQL.advance(bucket=0, job_id=job_id, first=first, paused=paused, next=None)
            return len(rows)

        return store.run(txn)

    assert (advance(7, True), advance(0, False), advance(0, True)) == (0, 0, 1)


# A job that was split: its items are parts of its batches' jobs.


def wide(store: Store, items: int = 4, batch: int = 2) -> tuple[str, list[str]]:
    """A split job, and the jobs of its batches."""
    new = new_job(store, batch=batch)
    store.run(lambda: split.create(new, items, lambda: [["1"] * items]))
    return new.id, [nested_id(new.id, n) for n in range(-(-items // batch))]


def walks_all(store: Store, job_id: str) -> None:
    for one in store.read(lambda: pause.walking_of(0, job_id)):
        walks(store, one)


def claims(store: Store, *tasks: str, limit: int = 100) -> list[Claim]:
    return claim(store, limit, tasks=tasks or (TASK, BATCH))


def waits(store: Store, job_id: str) -> list[nest.Nested]:
    """The batches that can be claimed begin to wait."""
    held = claims(store, BATCH)
    assert {one.job_id for one in held} <= {job_id}
    return [store.run(lambda one=one: nest.rejoin(one, new_job(store, id=nested_id(*one.key))))[0] for one in held]  # type: ignore[misc]


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("walk", [True, False])
def test_no_item_of_a_paused_split_job_is_claimed_and_all_come_back(store: Store, walk: bool, begun: bool) -> None:
    job_id, below = wide(store)
    other = make(store, 1)
    if begun:
        assert waits(store, job_id) == [nest.Nested.WAITS] * 2
    assert pauses(store, job_id, walk=False)
    if walk:
        walks_all(store, job_id)
        assert [ready(store, one) for one in below] == [0, 0]
    assert [held.job_id for held in claims(store)] == [other]
    assert [job(store, one).paused_at is None for one in (job_id, *below)] == [False] * 3
    assert resumes(store, job_id, walk=False)
    walks_all(store, job_id)
    assert len(claims(store, TASK)) == 4
    assert len(claims(store, BATCH)) == (0 if begun else 2)
    assert [job(store, one).paused_at for one in (job_id, *below)] == [None] * 3


def test_upkeep_holds_back_and_lets_go_the_items_of_a_split_job_too(store: Store) -> None:
    job_id, below = wide(store)
    pauses(store, job_id, walk=False)
    assert store.read(lambda: pause.walking(0)) == sorted([job_id, *below])
    assert store.read(lambda: pause.walking_of(0, job_id)) == sorted([job_id, *below])


def test_saying_it_again_of_a_split_job_holds_a_batch_that_was_resumed_by_itself(store: Store) -> None:
    job_id, below = wide(store)
    assert [pauses(store, job_id), pauses(store, job_id)] == [True, False]
    assert resumes(store, below[1])
    assert pauses(store, job_id)
    assert claims(store) == []
    assert [resumes(store, job_id), resumes(store, job_id)] == [True, False]


def test_a_batch_that_was_paused_by_itself_comes_back_with_the_whole(store: Store) -> None:
    job_id, below = wide(store)
    assert pauses(store, below[0])
    assert [held.job_id for held in claims(store, TASK)] == [below[1]] * 2
    assert resumes(store, job_id, walk=False)
    walks_all(store, job_id)
    assert [held.job_id for held in claims(store, TASK)] == [below[0]] * 2
    assert not resumes(store, job_id)


def test_the_pause_of_a_job_leaves_alone_the_jobs_for_which_its_parts_wait(store: Store) -> None:
    held, (below,) = begin_to_wait(store)
    assert pauses(store, held.job_id)
    assert job(store, below).paused_at is None
    assert [one.job_id for one in claims(store, TASK)] == [below]


def begin_to_wait(store: Store) -> tuple[Claim, list[str]]:
    job_id = make(store, 2)
    held, _ = claims(store)
    low = new_job(store, id=nested_id(job_id, 0), waiter_id=job_id, waiter_idx=0, parent_id=job_id, depth=1)
    assert store.run(lambda: nest.nest(held, low, 1, lambda: [["1"]]))[0] is nest.Nested.WAITS
    return held, [low.id]


def test_a_split_job_that_has_ended_is_not_paused_and_its_batches_are_not(store: Store) -> None:
    job_id, below = wide(store)
    cancel(store, job_id)
    with pytest.raises(NotAllowedNow, match="only a job that has not ended"):
        pauses(store, job_id)
    assert not resumes(store, job_id)
    assert [job(store, one).paused_at for one in below] == [None, None]


def again(store: Store, job_id: str) -> None:
    cancel(store, job_id)
    sweep_all(store)
    store.run(lambda: redrive.redrive(0, job_id, 1, 3))


def test_a_batch_that_goes_on_from_a_paused_run_is_not_paused_in_the_next(store: Store) -> None:
    job_id, below = wide(store)
    pauses(store, job_id, walk=False)
    walks_all(store, job_id)
    again(store, job_id)
    assert claims(store, TASK) == []
    assert waits(store, job_id) == [nest.Nested.WAITS] * 2
    walks_all(store, job_id)
    assert {held.job_id for held in claims(store, TASK)} == {*below}


def test_a_batch_that_is_run_again_under_a_paused_job_is_paused(store: Store) -> None:
    job_id, below = wide(store)
    for one in below:
        cancel(store, one)
    again(store, job_id)
    batches = claims(store, BATCH)
    pauses(store, job_id)
    for claimed in batches:
        found, _ = store.run(lambda one=claimed: nest.rejoin(one, new_job(store, id=nested_id(*one.key))))  # type: ignore[misc]
        assert found is nest.Nested.WAITS
    assert claims(store) == []
    assert resumes(store, job_id, walk=False)
    walks_all(store, job_id)
    assert {held.job_id for held in claims(store, TASK)} == {*below}


def test_a_batch_paused_by_itself_before_it_is_claimed_stays_so(store: Store) -> None:
    job_id, below = wide(store)
    pauses(store, below[0])
    assert waits(store, job_id) == [nest.Nested.WAITS] * 2
    assert job(store, below[0]).paused_at is not None
