"""Races of a job that is split: its batches begin to wait for jobs that stand already, and all of them end."""

from __future__ import annotations

from typing import Any

from fanin.domain.flows import BATCH
from fanin.domain.identity import nested_id
from fanin.domain.model import Claim, NewJob, Report
from fanin.domain.policy import Policy
from fanin.protocol import close, lease, nest, outbox, purge, redrive, split
from fanin.testing.explorer import Actor, Run
from fanin.testing.state import select
from fanin.testing.stepper import Script
from tests.races.arena import (
    Arena,
    canceller,
    giver_up,
    pauser,
    reaper,
    redriver,
    resumer,
    said,
    skipper,
    sweeper,
    walker,
)
from tests.races.races_nested import begins_to_wait
from tests.races.races_operators import none_is_held
from tests.races.races_purge import purger
from tests.races.scenarios import crowd, race, three
from tests.races.stage import BUCKET, LEASES, TASK, succeed

SHORT: dict[str, Any] = {"preemptions": 1}
"""In the short run; the long one goes through every schedule."""
LONGER: dict[str, Any] = {"preemptions": 1, "always": 2}
"""Two transactions of a dozen statements each have too many schedules to try all."""
BATCHES = {BATCH: 600.0}
PARTS = {TASK: 600.0}


def wide(arena: Arena, batches: int = 2, **options: Any) -> str:
    """A job of so many batches of one part each."""
    rule: Policy = options.pop("policy", Policy())
    job = arena.new(batch=1, policy=rule, successor=None, **options)
    arena.store.run(lambda: split.create(job, batches, lambda: [["1"] * batches]))
    return job.id


def rejoined(arena: Arena, held: Claim) -> nest.Nested:
    job = arena.nested(held)
    return arena.store.run(lambda: nest.rejoin(held, job))[0]


def waits(arena: Arena, batches: int = 2, many: int | None = None, **options: Any) -> tuple[str, list[Claim]]:
    """Its first ``many`` batches wait (all, by default). The parts of these; those of the others are held too."""
    job_id = wide(arena, batches, **options)
    held = arena.claims(batches if many is None else many, BATCHES)
    assert {rejoined(arena, one) for one in held} == {nest.Nested.WAITS}
    parts = {claim.job_id: claim for claim in arena.claims(batches, PARTS)}
    return job_id, [parts[nested_id(*one.key)] for one in held]


def begins(
    arena: Arena, batches: int = 1, leases: dict[str, float] = BATCHES, **options: Any
) -> tuple[str, Claim, Claim]:
    """The first batch is claimed and does not wait yet, and its part is held."""
    job_id = wide(arena, batches, **options)
    (held,) = arena.claims(1, leases)
    (last,) = arena.claims(1, PARTS)
    assert last.job_id == nested_id(job_id, held.idx)
    return job_id, held, last


def rejoiner(arena: Arena, name: str, held: Claim) -> Actor:
    """The holder of a batch that begins to wait."""
    job = arena.nested(held)
    return begins_to_wait(name, lambda: nest.rejoin(held, job))


def splitter(arena: Arena, name: str, job: NewJob, parts: int = 2) -> Actor:
    return said(name, lambda: split.create(job, parts, lambda: [["1"] * parts]), "NEW", "SAME")


def whole(arena: Arena, run: Run) -> list[str]:
    """A split job has all of its batches, and each of these its job, or nothing of it is there."""
    rows = select(
        arena.store,
        "SELECT (SELECT count(*) FROM fanin.part AS p WHERE p.job_id = j.id) AS batches, "
        "(SELECT count(*) FROM fanin.job AS n WHERE n.waiter_id = j.id) AS jobs, j.planned_parts AS planned "
        "FROM fanin.job AS j WHERE j.batch IS NOT NULL",
    )
    return [f"not whole: {row}" for row in rows if len(set(row.values())) > 1]


# Making it.


@race("a job that is split, by two with one key", "A=NEW B=SAME", "A=SAME B=NEW", also=whole, **SHORT)
def split_and_split(arena: Arena) -> list[Actor]:
    """Each could make some of the batches, or a batch be made twice."""
    job = arena.new(batch=1, successor=None)
    return [splitter(arena, "A", job), splitter(arena, "B", job)]


@race("a job that is split, and another content under its key", "A=NEW B=CONFLICT", "A=CONFLICT B=NEW", also=whole,
      **SHORT)  # fmt: skip
def split_and_conflict(arena: Arena) -> list[Actor]:
    """The second could get the job of the first, or leave batches of its own below it."""
    job = arena.new(batch=1, successor=None)
    other = arena.new(batch=1, successor=None, request_hash="another")
    return [splitter(arena, "A", job), splitter(arena, "B", other, 3)]


@race("a job that is split, and workers that claim", "A=NEW B=0", "A=NEW B=4", also=whole, **SHORT)
def split_and_claim(arena: Arena) -> list[Actor]:
    """A worker could see a batch without its job, or parts without the batch."""
    job = arena.new(batch=1, successor=None)
    claiming = arena.claiming(LEASES, 10)

    def script() -> Script:
        return f"{len((yield claiming))}"

    return [splitter(arena, "A", job), Actor("B", script)]


# A batch begins to wait.


@race("a batch begins to wait, and the last part of its job ends", "A=LAST N=COMPLETED", "A=LAST N=WAITS", **SHORT)
def rejoin_and_rise(arena: Arena) -> list[Actor]:
    """The end could find nobody waiting, and the batch then waits for a job that has ended."""
    _, held, last = begins(arena)
    return [arena.succeeds("A", last), rejoiner(arena, "N", held)]


@race("a batch begins to wait, and its job fails", "A=LAST N=FAILED", "A=LAST N=WAITS", **SHORT)
def rejoin_and_fail(arena: Arena) -> list[Actor]:
    """A job that failed in this run could be run again for a batch that only comes late."""
    _, held, last = begins(arena)
    return [arena.fails("A", last), rejoiner(arena, "N", held)]


@race("a batch begins to wait twice, by one attempt", "M=WAITS N=WAITS", **SHORT)
def rejoin_and_rejoin(arena: Arena) -> list[Actor]:
    """The second could be told that it has lost the batch."""
    _, held, _ = begins(arena)
    return [rejoiner(arena, "M", held), rejoiner(arena, "N", held)]


@race("a batch begins to wait, and the whole is cancelled", "C=CANCELLED N=WAITS", **LONGER)
def rejoin_and_cancel(arena: Arena) -> list[Actor]:
    """The job of the batch could go on for nobody."""
    job_id, held, _ = begins(arena)
    return [canceller("C", job_id), rejoiner(arena, "N", held)]


@race("a batch begins to wait, and its job is cancelled", "C=CANCELLED N=FAILED", "C=CANCELLED N=WAITS", **SHORT)
def rejoin_and_cancel_nested(arena: Arena) -> list[Actor]:
    """The batch could wait for a job that was cancelled a moment before."""
    _, held, last = begins(arena)
    return [canceller("C", last.job_id), rejoiner(arena, "N", held)]


@race("a batch begins to wait, and the whole gives up", "G=GAVE_UP N=WAITS", **LONGER)
def rejoin_and_give_up(arena: Arena) -> list[Actor]:
    """The deadline of the whole could leave a batch that waits, and its job, for ever."""
    job_id, held, _ = begins(arena, give_up_after=-1.0)
    return [giver_up("G", job_id), rejoiner(arena, "N", held)]


@race("a batch begins to wait, and the sweep of the cancelled whole", "N=LOST S=SWEPT 1", "N=WAITS S=SWEPT 0",
      "N=WAITS S=SWEPT 1", **SHORT)  # fmt: skip
def rejoin_and_sweep(arena: Arena) -> list[Actor]:
    """A batch that was swept could wait all the same."""
    job_id, held, _ = begins(arena)
    arena.store.run(lambda: close.cancel(BUCKET, job_id))
    return [rejoiner(arena, "N", held), sweeper("S", job_id)]


def spent(arena: Arena) -> tuple[str, Claim, Claim]:
    """The last lease of a batch has run out."""
    found = begins(arena, leases={BATCH: -1.0})
    arena.spend()
    return found


def ended_or_waits(arena: Arena, run: Run) -> list[str]:
    """Whoever ended the batch first has ended it: the holder hears then that its claim is done with."""
    wanted = "failed" if run.outcomes["R"] == "REAPED 1" else "running"
    rows = select(
        arena.store,
        "SELECT status, waiting FROM fanin.part WHERE job_id IN (SELECT id FROM fanin.job WHERE batch IS NOT NULL)",
    )
    fine = rows == [{"status": wanted, "waiting": wanted == "running"}]
    return [] if fine else [f"the batch is {rows}, and was to be {wanted}"]


@race("a batch begins to wait, and the reaper finds its last lease run out", "N=WAITS R=REAPED 1", "N=WAITS R=REAPED 0",
      also=ended_or_waits, **LONGER)  # fmt: skip
def rejoin_and_reap(arena: Arena) -> list[Actor]:
    """A batch that waits could be failed for a lease that it has no more, or one that has failed wait."""
    _, held, _ = spent(arena)
    return [rejoiner(arena, "N", held), reaper("R")]


@race("a batch whose last lease has run out, and the end of its job", "A=LAST R=REAPED 1", **LONGER)
def reap_and_rise(arena: Arena) -> list[Actor]:
    """The end could settle a batch that the reaper fails, or each wait for what the other holds."""
    _, _, last = spent(arena)
    return [arena.succeeds("A", last), reaper("R")]


@race("a batch begins to wait, and another attempt of it does", "M=LOST N=WAITS", "M=WAITS N=NOTHING", **LONGER)
def rejoin_and_reclaim(arena: Arena) -> list[Actor]:
    """Both attempts could wait, or the older one in the place of the newer."""
    _, held, _ = begins(arena, leases={BATCH: -1.0})
    claiming = arena.claiming(BATCHES)
    job = arena.nested(held)

    def script() -> Script:
        yield lambda: lease.wake(BUCKET)
        claims = yield claiming
        if not claims:
            return "NOTHING"
        found, _ = yield lambda: nest.rejoin(claims[0], job)
        return str(found.name)

    return [rejoiner(arena, "M", held), Actor("N", script)]


@race("a batch begins to wait, and an operator skips it", "N=LOST K=ENDED", "N=WAITS K=ENDED", **LONGER)
def rejoin_and_skip(arena: Arena) -> list[Actor]:
    """A batch that was skipped could wait, and be counted twice."""
    job_id, held, _ = begins(arena)
    return [rejoiner(arena, "N", held), skipper("K", job_id, held.idx, arena.deed())]


# Its run after the first.


def again(arena: Arena) -> tuple[str, Claim, str]:
    """The whole in its second run, after it was cancelled; a batch is held anew, and its job was cancelled too."""
    job_id, (last,) = waits(arena, 1)
    arena.store.run(lambda: close.cancel(BUCKET, job_id))
    arena.store.run(lambda: close.sweep(BUCKET, job_id, 0))
    arena.store.run(lambda: close.cancel(BUCKET, last.job_id))
    arena.store.run(lambda: close.sweep(BUCKET, last.job_id, 0))
    arena.store.run(lambda: redrive.redrive(BUCKET, job_id, 1, 2))
    (held,) = arena.claims(1, BATCHES)
    return job_id, held, last.job_id


@race("a batch that is run again begins to wait, twice by one attempt", "M=WAITS N=WAITS", **SHORT)
def rejoin_again_and_again(arena: Arena) -> list[Actor]:
    """Its job could be run again twice."""
    _, held, _ = again(arena)
    return [rejoiner(arena, "M", held), rejoiner(arena, "N", held)]


@race("a batch that is run again begins to wait, and the whole is cancelled", "C=CANCELLED N=WAITS", **LONGER)
def rejoin_again_and_cancel(arena: Arena) -> list[Actor]:
    """Its job could be opened again for nobody."""
    job_id, held, _ = again(arena)
    return [canceller("C", job_id), rejoiner(arena, "N", held)]


@race("a batch that is run again begins to wait, and its attempt gives it back", "A=LOST N=WAITS", "A=OK N=LOST",
      **LONGER)  # fmt: skip
def rejoin_again_and_release(arena: Arena) -> list[Actor]:
    """Its job could be opened again by an attempt that holds nothing."""
    _, held, _ = again(arena)
    return [arena.releases("A", held), rejoiner(arena, "N", held)]


@race("the whole is redriven, and the job of a batch ends that was left behind", "A=LAST R=RUN 2", **LONGER)
def redrive_and_rise(arena: Arena) -> list[Actor]:
    """The end could pass by the batch that is opened again, which then waits for ever."""
    job_id, (last,) = waits(arena, 1)
    arena.store.run(lambda: close.cancel(BUCKET, job_id))
    return [arena.succeeds("A", last), redriver("R", job_id)]


@race("the whole is redriven by two", "Q=RUN 2 R=RUN 2", **SHORT)
def redrive_and_redrive_split(arena: Arena) -> list[Actor]:
    """Two people press the button, and batches run twice over."""
    job_id, claims = waits(arena)
    for last in claims:
        arena.settled([Report(last, "fail", error='{"type": "E"}')])
    return [redriver("Q", job_id), redriver("R", job_id)]


@race("the whole is redriven, and the last of its batches fails", "A=LAST R=REFUSED", "A=LAST R=RUN 2", **LONGER)
def redrive_and_last_fail(arena: Arena) -> list[Actor]:
    """A batch that fails at that moment could be left out of the new run."""
    job_id, (one, two) = waits(arena)
    arena.settled([Report(one, "fail", error='{"type": "E"}')])
    return [arena.fails("A", two), redriver("R", job_id)]


@race("the whole is redriven, and a job that was left behind is cancelled", "B=ABANDONED R=RUN 2", "B=LEFT R=RUN 2",
      **LONGER)  # fmt: skip
def redrive_and_abandon(arena: Arena) -> list[Actor]:
    """The job of a batch could be cancelled that has begun to wait for it again."""
    job_id, (last,) = waits(arena, 1)
    arena.store.run(lambda: close.cancel(BUCKET, job_id))
    arena.store.run(lambda: close.sweep(BUCKET, job_id, 0))
    return [said("B", lambda: nest.abandon(BUCKET, last.job_id, job_id, 0), "ABANDONED", "LEFT"), redriver("R", job_id)]


# Its end.


@race("two batches end", "A=LAST B=LAST", **LONGER)
def batches_end(arena: Arena) -> list[Actor]:
    """Each could count without seeing the other: the whole would not end."""
    _, (one, two) = waits(arena)
    return [arena.succeeds("A", one), arena.succeeds("B", two)]


@race("the last batch ends, and the whole is cancelled", "A=LAST C=CANCELLED", "A=LAST C=LATE", **LONGER)
def batch_and_cancel(arena: Arena) -> list[Actor]:
    """The whole could end twice."""
    job_id, (last,) = waits(arena, 1)
    return [arena.succeeds("A", last), canceller("C", job_id)]


@race("the last batch ends, and the whole gives up", "A=LAST G=GAVE_UP", "A=LAST G=LATE", **LONGER)
def batch_and_give_up(arena: Arena) -> list[Actor]:
    """The whole could complete and give up."""
    job_id, (last,) = waits(arena, 1, give_up_after=-1.0)
    return [arena.succeeds("A", last), giver_up("G", job_id)]


@race("a batch ends, and the sweep of the whole that has given up", "A=LAST S=SWEPT 0", "A=LAST S=SWEPT 1", **LONGER)
def batch_and_sweep(arena: Arena) -> list[Actor]:
    """A batch that was swept could be settled too."""
    job_id, (last,) = waits(arena, 1, give_up_after=-1.0)
    arena.store.run(lambda: close.give_up(BUCKET, job_id))
    return [arena.succeeds("A", last), sweeper("S", job_id)]


@race("a batch fails beside one that ends, under fail fast", "A=LAST B=LAST", **LONGER)
def batch_fails_fast(arena: Arena) -> list[Actor]:
    """The first failure ends the whole, and could leave the other batch counted nowhere."""
    _, (one, two) = waits(arena, 3, 2, policy=Policy(fail_fast=True))
    return [arena.fails("A", one), arena.succeeds("B", two)]


@race("two batches fail under fail fast", "A=LAST B=LAST", **LONGER)
def batches_fail_fast(arena: Arena) -> list[Actor]:
    """Both could close the whole."""
    _, (one, two) = waits(arena, 3, 2, policy=Policy(fail_fast=True))
    return [arena.fails("A", one), arena.fails("B", two)]


@race("a batch fails fast, and another begins to wait", "A=LAST N=WAITS", **LONGER)
def fail_fast_and_rejoin(arena: Arena) -> list[Actor]:
    """A batch could begin to wait below a whole that has failed, and nobody would end it."""
    _, (one,) = waits(arena, 2, 1, policy=Policy(fail_fast=True))
    (held,) = arena.claims(1, BATCHES)
    return [arena.fails("A", one), rejoiner(arena, "N", held)]


def forgetter(name: str, job_id: str, idx: int = 0) -> Actor:
    return said(name, lambda: nest.forget(BUCKET, job_id, idx), "FORGOTTEN", "KEPT")


@race("the job of a swept batch ends, and the batch is forgotten", "A=LAST F=FORGOTTEN", "A=LAST F=KEPT", **SHORT)
def batch_and_forget(arena: Arena) -> list[Actor]:
    """A batch could be forgotten whose job goes on."""
    job_id, (last,) = waits(arena, 1)
    arena.store.run(lambda: close.cancel(BUCKET, job_id))
    arena.store.run(lambda: close.sweep(BUCKET, job_id, 0))
    return [arena.succeeds("A", last), forgetter("F", job_id)]


# Its pause.


def as_the_whole(arena: Arena, run: Run) -> list[str]:
    """A batch is paused if and only if the whole is; and no part is held back whose job goes on."""
    rows = select(
        arena.store,
        "SELECT n.id FROM fanin.job AS j JOIN fanin.job AS n ON n.bucket = j.bucket AND n.waiter_id = j.id "
        "WHERE j.batch IS NOT NULL AND j.status = 'running' AND n.status = 'running' "
        "AND (j.paused_at IS NULL) <> (n.paused_at IS NULL)",
    )
    return [f"not as the whole: {row}" for row in rows] + none_is_held(arena, run)


def stops(arena: Arena, job_id: str) -> None:
    arena.paused(job_id, walked=False)


@race("the pause of a whole and a claim of its items", "P=PAUSED W=0", "P=PAUSED W=2", also=as_the_whole, **SHORT)
def pause_split_and_claim(arena: Arena) -> list[Actor]:
    """A worker that begins after the pause could take an item of a batch."""
    job_id = wide(arena)
    return [pauser("P", job_id, arena.deed()), arena.claimer("W", 2)]


@race("the pause of a whole and the end of its last batch", "A=LAST P=PAUSED", "A=LAST P=REFUSED", also=as_the_whole,
      **LONGER)  # fmt: skip
def pause_split_and_rise(arena: Arena) -> list[Actor]:
    """The end goes from the batch to the whole, and the pause could go the other way: each waits for the other."""
    job_id, (last,) = waits(arena, 1)
    return [arena.succeeds("A", last), pauser("P", job_id, arena.deed())]


@race("the pause of a whole and the end of two of its batches at once", "A=LAST+LAST P=PAUSED", "A=LAST+LAST P=REFUSED",
      also=as_the_whole, **SHORT)  # fmt: skip
def pause_split_and_rise_of_two(arena: Arena) -> list[Actor]:
    """The rows of the batches could be taken in opposite order."""
    job_id, claims = waits(arena)
    return [arena.reporter("A", [succeed(one) for one in claims]), pauser("P", job_id, arena.deed())]


@race("the pause of a whole and its cancel", "C=CANCELLED P=PAUSED", "C=CANCELLED P=REFUSED", also=as_the_whole,
      **SHORT)  # fmt: skip
def pause_split_and_cancel(arena: Arena) -> list[Actor]:
    """Batches could be paused of a whole that has ended."""
    job_id, _ = waits(arena, 1)
    return [canceller("C", job_id), pauser("P", job_id, arena.deed())]


@race("the pause of a whole by two", "P=PAUSED Q=BEFORE", "P=BEFORE Q=PAUSED", also=as_the_whole, **SHORT)
def pause_split_twice(arena: Arena) -> list[Actor]:
    """Both could take the batches, each some of them."""
    job_id = wide(arena)
    return [pauser("P", job_id, arena.deed()), pauser("Q", job_id, arena.deed())]


@race("the pause of a whole, and a batch whose job is run again", "N=WAITS P=PAUSED", also=as_the_whole, **LONGER)
def pause_split_and_rejoin(arena: Arena) -> list[Actor]:
    """The batch could be run again, unseen by the pause, and go on."""
    job_id, held, _ = again(arena)
    return [rejoiner(arena, "N", held), pauser("P", job_id, arena.deed())]


@race("the resume of a whole, and a batch whose job is run again", "N=WAITS R=RESUMED", also=as_the_whole, **LONGER)
def resume_split_and_rejoin(arena: Arena) -> list[Actor]:
    """The batch could take the pause over that is just being ended, and wait for ever."""
    job_id, held, _ = again(arena)
    stops(arena, job_id)
    return [rejoiner(arena, "N", held), resumer("R", job_id, arena.deed())]


def survived(arena: Arena) -> tuple[str, Claim]:
    """The whole was paused, cancelled and redriven; its batch is held anew, whose job still goes on, paused."""
    job_id, (last,) = waits(arena, 1)
    arena.settled([Report(last, "release")])
    arena.paused(job_id)
    arena.store.run(lambda: close.cancel(BUCKET, job_id))
    arena.store.run(lambda: close.sweep(BUCKET, job_id, 0))
    arena.store.run(lambda: redrive.redrive(BUCKET, job_id, 1, 2))
    (held,) = arena.claims(1, BATCHES)
    return job_id, held


@race("a batch begins to wait for a job that kept the pause of an earlier run, and the whole is paused",
      "N=WAITS P=PAUSED", also=as_the_whole, **LONGER)  # fmt: skip
def rejoin_paused_and_pause(arena: Arena) -> list[Actor]:
    """The old pause could be ended in the place of the new one."""
    job_id, held = survived(arena)
    return [rejoiner(arena, "N", held), pauser("P", job_id, arena.deed())]


@race("a batch begins to wait for a job that kept the pause of an earlier run, and its walk", "N=WAITS K=END",
      also=as_the_whole, **SHORT)  # fmt: skip
def rejoin_paused_and_walk(arena: Arena) -> list[Actor]:
    """A part could be held back for good."""
    job_id, held = survived(arena)
    return [rejoiner(arena, "N", held), walker("K", nested_id(job_id, 0))]


@three("a whole is paused and resumed while a batch is walked through", "K=END P=PAUSED R=RESUMED",
       "K=END P=PAUSED R=BEFORE", also=as_the_whole)  # fmt: skip
def pause_split_resume_and_walk(arena: Arena) -> list[Actor]:
    """A part could be held back whose job goes on, or some batches be paused and others not."""
    job_id = wide(arena)
    actors = [pauser("P", job_id, arena.deed()), resumer("R", job_id, arena.deed())]
    return [walker("K", nested_id(job_id, 0)), *actors]


# Its purge.


def old(arena: Arena) -> tuple[str, list[purge.Member]]:
    """It has failed with all of its batches, and its events are published."""
    job_id, (last,) = waits(arena, 1)
    arena.settled([Report(last, "fail", error='{"type": "E"}')])
    claim_id, events = arena.taken()
    arena.store.run(lambda: outbox.settle(BUCKET, claim_id, [outbox.Said(one.key, "mark") for one in events]))
    return job_id, arena.store.read(lambda: purge.tree([BUCKET], (BUCKET, job_id)))


@race("a purge of the whole and its redrive", "P=PURGED R=UNKNOWN", "P=KEPT live R=RUN", **SHORT)
def purge_and_redrive_split(arena: Arena) -> list[Actor]:
    """The jobs of batches could be removed under a whole that was opened again."""
    job_id, members = old(arena)
    return [purger("P", members), said("R", lambda: redrive.redrive(BUCKET, job_id, 1, 2), "RUN", "NOTHING")]


@race("a purge of the whole and the same key again", "P=PURGED C=SAME", "P=PURGED C=REFUSED", **SHORT)
def purge_and_split(arena: Arena) -> list[Actor]:
    """A new whole could stand on jobs of the old one."""
    _, members = old(arena)
    job = arena.new(batch=1, successor=None)
    return [purger("P", members), splitter(arena, "C", job, 1)]


@race("a purge of the whole, and a batch of its second run that begins to wait", "P=KEPT live N=WAITS", **SHORT)
def purge_and_rejoin(arena: Arena) -> list[Actor]:
    """The job of a batch could be removed for which it has just begun to wait."""
    job_id, members = old(arena)
    arena.store.run(lambda: redrive.redrive(BUCKET, job_id, 1, 2))
    (held,) = arena.claims(1, BATCHES)
    return [purger("P", members), rejoiner(arena, "N", held)]


# Three and more.


@three("a batch begins to wait, its job ends, and the whole is cancelled", "A=LAST C=CANCELLED N=COMPLETED",
       "A=LAST C=CANCELLED N=WAITS", "A=LAST C=LATE N=WAITS")  # fmt: skip
def rejoin_rise_and_cancel(arena: Arena) -> list[Actor]:
    """The batch ends by its job or by the cancel, and its job never goes on for nobody."""
    job_id, held, last = begins(arena)
    return [arena.succeeds("A", last), canceller("C", job_id), rejoiner(arena, "N", held)]


@three("a batch begins to wait, the whole is swept, and its job is left behind", "N=LOST S=SWEPT 1 B=ABANDONED",
       "N=LOST S=SWEPT 1 B=LEFT", "N=WAITS S=SWEPT 0 B=LEFT", "N=WAITS S=SWEPT 1 B=LEFT",
       "N=WAITS S=SWEPT 1 B=ABANDONED")  # fmt: skip
def rejoin_sweep_and_abandon(arena: Arena) -> list[Actor]:
    """A job could be cancelled as left behind, whose batch waits."""
    job_id, held, last = begins(arena)
    arena.store.run(lambda: close.cancel(BUCKET, job_id))
    abandons = said("B", lambda: nest.abandon(BUCKET, last.job_id, job_id, 0), "ABANDONED", "LEFT")
    return [rejoiner(arena, "N", held), sweeper("S", job_id), abandons]


@three("three batches end", "A=LAST B=LAST D=LAST")
def three_batches_end(arena: Arena) -> list[Actor]:
    """Of three last ones each could miss the others."""
    _, (one, two, more) = waits(arena, 3)
    return [arena.succeeds("A", one), arena.succeeds("B", two), arena.succeeds("D", more)]


@crowd(
    "a whole: two batches end, one of them badly, a third begins to wait, while it is cancelled, gives up and is swept",
    "A=LAST",
    "B=LAST",
    "N=WAITS",
    "C=CANCELLED",
    "C=LATE",
    "G=GAVE_UP",
    "G=LATE",
    "S=SWEPT 0",
)
def split_in_a_crowd(arena: Arena) -> list[Actor]:
    """Each batch is counted once, and the whole ends once, by the first that ends it."""
    job_id, (one, two) = waits(arena, 3, 2, policy=Policy(fail_fast=True), give_up_after=-1.0)
    (held,) = arena.claims(1, BATCHES)
    workers = [arena.fails("A", one), arena.succeeds("B", two), rejoiner(arena, "N", held)]
    return [*workers, canceller("C", job_id), giver_up("G", job_id), sweeper("S", job_id)]
