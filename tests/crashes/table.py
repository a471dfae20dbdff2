"""Every writing transaction of the protocol, as a row: where it starts from, and what it does."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from fanin.domain import limits
from fanin.domain.effects import MODES, Intent
from fanin.domain.events import Event
from fanin.domain.identity import item_key, successor_id
from fanin.domain.model import Claim, Fired, Report, Settled, Spec
from fanin.domain.policy import Policy
from fanin.protocol import (
    close,
    effect,
    finish,
    flow,
    growth,
    lease,
    outbox,
    outputs,
    pause,
    progress,
    purge,
    redrive,
    schedule,
    skip,
    submit,
)
from fanin.protocol.effect import Begun, Call
from fanin.protocol.exchange import Exchanged
from fanin.protocol.steps import Txn, TxnFactory
from tests.protocol import flows
from tests.races.stage import BUCKET, LAPSED, QUEUE, TASK, THEN, Stage, succeed


@dataclass(frozen=True)
class Transaction:
    """``of`` is the generator's place in the protocol; ``stage`` makes the rows and gives the transaction. What is
    ``damaged`` breaks rules before and after."""

    of: str
    title: str
    stage: Callable[[Stage], TxnFactory[Any]]
    damaged: bool = False

    def left(self, planted: list[str]) -> list[str]:
        """The rules that are broken when it is over, of those that were when it began."""
        return planted if self.damaged else []


TABLE: dict[str, Transaction] = {}


def row(
    of: str, title: str, damaged: bool = False
) -> Callable[[Callable[[Stage], TxnFactory[Any]]], Callable[[Stage], TxnFactory[Any]]]:
    def register(stage: Callable[[Stage], TxnFactory[Any]]) -> Callable[[Stage], TxnFactory[Any]]:
        TABLE[stage.__name__] = Transaction(of, title, stage, damaged)
        return stage

    return register


def every_row() -> list[Any]:
    """The names, as parameters of a test that asks the rules itself."""
    return [
        pytest.param(name, marks=pytest.mark.plants_corruption) if one.damaged else name for name, one in TABLE.items()
    ]


def every_second_row(first: int) -> list[Any]:
    """Half of them, or all with ``FANIN_ALL_ROWS=1``: for what is tried in many ways with transactions that
    tests/crashes cuts one and all. ``first``: 0 or 1."""
    return every_row() if os.environ.get("FANIN_ALL_ROWS") == "1" else every_row()[first::2]


def held(stage: Stage, parts: int, leases: dict[str, float] | None = None, **options: Any) -> tuple[str, list[Claim]]:
    job_id = stage.job(parts, **options)
    return job_id, stage.claims(parts, leases) if leases else stage.claims(parts)


def settling(*reports: Report) -> TxnFactory[list[Settled]]:
    return lambda: finish.settle(BUCKET, reports, "w")


def failure(claim: Claim, verb: str = "fail", delay: float = 0.0) -> Report:
    return Report(claim, verb, error='{"type": "E", "message": "m", "traceback": ""}', delay=delay)


# Creating.


@row("submit.create", "a job on two counters")
def create(stage: Stage) -> TxnFactory[bool]:
    job = stage.new(stripes=2)
    return lambda: submit.create(job, 3, lambda: [["1", "2"], ["3"]])


@row("submit.create", "a job without parts, which ends at once")
def create_empty(stage: Stage) -> TxnFactory[bool]:
    job = stage.new()
    return lambda: submit.create(job, 0, list)


@row("submit.open_job", "an open job")
def open_job(stage: Stage) -> TxnFactory[bool]:
    job = stage.new(stripes=2, give_up_after=60.0)
    return lambda: submit.open_job(job)


@row("submit.append", "parts of which one stands already")
def append(stage: Stage) -> TxnFactory[int]:
    job_id = stage.open(1, stripes=2)
    return lambda: submit.append(BUCKET, job_id, 0, ["1", "2", "3"])


@row("submit.seal", "an open job with parts")
def seal(stage: Stage) -> TxnFactory[bool]:
    job_id = stage.open(3, stripes=2)
    return lambda: submit.seal(BUCKET, job_id, 3, "hash", False)


@row("submit.seal", "an open job whose parts have all ended")
def seal_done(stage: Stage) -> TxnFactory[bool]:
    job_id = stage.open(1)
    stage.settled([succeed(claim) for claim in stage.claims(1)])
    return lambda: submit.seal(BUCKET, job_id, 1, "hash", True)


@row("submit.create", "a job that grows")
def create_growing(stage: Stage) -> TxnFactory[bool]:
    job = stage.new(stripes=2, width=10)
    return lambda: submit.create(job, 3, lambda: [["1", "2"], ["3"]])


@row("submit.append_new", "an open job that grows, which has seen one of two items and holds another")
def append_new(stage: Stage) -> TxnFactory[int]:
    job = stage.new(stripes=2, width=10, give_up_after=3600.0)
    stage.store.run(lambda: submit.open_job(job))
    stage.store.run(lambda: submit.append_new(BUCKET, job.id, 0, fresh("a")))
    (one,) = stage.claims(1)
    stage.settled([adding(one, "b")])
    return lambda: submit.append_new(BUCKET, job.id, 0, fresh("a", "b", "c", "d"))


# Growing.


def fresh(*payloads: str) -> tuple[tuple[str, str], ...]:
    return tuple((item_key(payload), payload) for payload in payloads)


def adding(claim: Claim, *payloads: str) -> Report:
    return msgspec.structs.replace(succeed(claim), spawns=fresh(*payloads))


def growing(stage: Stage, width: int = 10, **options: Any) -> list[Claim]:
    job = stage.new(stripes=2, width=width, **options)
    stage.store.run(lambda: submit.create(job, 2, lambda: [["1", "2"]]))
    return stage.claims(2)


@row("growth.spawn", "parts that a held part adds at once, one of them known")
def spawn(stage: Stage) -> TxnFactory[int | None]:
    one, _ = growing(stage)
    return lambda: growth.spawn(one, fresh("2", "a", "b"))


@row("finish.settle", "two successes that add parts, on two counters")
def succeed_and_spawn(stage: Stage) -> TxnFactory[list[Settled]]:
    one, two = growing(stage)
    return settling(adding(one, "a", "b"), adding(two, "b", "c"))


@row("finish.settle", "two successes of which one adds more than the job may have")
def succeed_and_spawn_too_much(stage: Stage) -> TxnFactory[list[Settled]]:
    one, two = growing(stage, width=3)
    return settling(adding(one, "a", "b"), adding(two, "b"))


@row("finish.settle", "a failure that is judged by what the other part of a job that grows may still add")
def fail_and_spawn(stage: Stage) -> TxnFactory[list[Settled]]:
    one, _ = growing(stage, policy=Policy(quorum=5))
    return settling(failure(one))


@row("exchange.exchange", "a success that adds parts, which are claimed at once")
def exchange_and_spawn(stage: Stage) -> TxnFactory[Exchanged]:
    one, _ = growing(stage)
    return stage.exchanging([adding(one, "a", "b")])


# Leases.


@row("lease.claim", "all parts of two jobs")
def claim(stage: Stage) -> TxnFactory[list[Claim]]:
    stage.job(2, "one")
    stage.job(1, "two")
    return stage.claiming(limit=10)


@row("lease.renew", "two leases, and one that is lost")
def renew(stage: Stage) -> TxnFactory[list[Claim]]:
    _, (one, two, three) = held(stage, 3)
    stage.settled([succeed(three)])
    return lambda: lease.renew(BUCKET, [(two, 900.0), (one, 900.0), (three, 900.0)])


@row("lease.renew", "a lease, and a part that another attempt holds")
def renew_overtaken(stage: Stage) -> TxnFactory[list[Claim]]:
    _, (one,) = held(stage, 1, LAPSED)
    stage.store.run(lambda: lease.wake(BUCKET))
    stage.claims(1)
    _, (two,) = held(stage, 1, name="two")
    return lambda: lease.renew(BUCKET, [(one, 900.0), (two, 900.0)], "w")


@row("lease.checkpoint", "a part of a closed job")
def checkpoint_closed(stage: Stage) -> TxnFactory[bool]:
    job_id, (one,) = held(stage, 1)
    stage.store.run(lambda: close.cancel(BUCKET, job_id))
    stage.store.run(lambda: close.sweep(BUCKET, job_id, 0))
    return lambda: lease.checkpoint(one, 900.0, '{"at": 7}')


@row("lease.checkpoint", "a held part")
def checkpoint(stage: Stage) -> TxnFactory[bool]:
    _, (one,) = held(stage, 1)
    return lambda: lease.checkpoint(one, 900.0, '{"at": 7}')


@row("lease.wake", "a lapsed lease and a delayed part")
def wake(stage: Stage) -> TxnFactory[lease.Woken]:
    _, (one, _) = held(stage, 2, LAPSED)
    stage.settled([failure(one, "retry", delay=1e-9)])
    return lambda: lease.wake(BUCKET)


@row("lease.reap", "a spent part beside live ones")
def reap(stage: Stage) -> TxnFactory[int]:
    stage.job(2, attempts=1)
    stage.claims(1, LAPSED)
    return lambda: lease.reap(BUCKET)


@row("lease.reap", "the last parts of two jobs, one of which is closed")
def reap_last(stage: Stage) -> TxnFactory[int]:
    held(stage, 1, LAPSED, name="one", attempts=1)
    other, _ = held(stage, 1, LAPSED, name="two", attempts=1)
    stage.store.run(lambda: close.cancel(BUCKET, other))
    return lambda: lease.reap(BUCKET)


# Reports.


@row("finish.settle", "a success with others to come")
def succeed_one(stage: Stage) -> TxnFactory[list[Settled]]:
    _, (one, _) = held(stage, 2)
    return settling(succeed(one))


@row("finish.settle", "the last success, with a successor")
def succeed_last(stage: Stage) -> TxnFactory[list[Settled]]:
    _, (one,) = held(stage, 1)
    return settling(succeed(one))


@row("finish.settle", "the last success, with a successor and two listeners")
def succeed_heard(stage: Stage) -> TxnFactory[list[Settled]]:
    specs = [Spec(task=THEN, step=f"on/{name}") for name in ("one", "two")]
    _, (one,) = held(stage, 1, listeners=msgspec.json.encode(specs).decode())
    return settling(succeed(one))


@row("finish.settle", "the last success of a chain that is too deep")
def succeed_too_deep(stage: Stage) -> TxnFactory[list[Settled]]:
    _, (one,) = held(stage, 1, depth=limits.JOB_DEPTH_LEVELS)
    return settling(succeed(one))


@row("finish.settle", "a batch over two jobs, which ends both")
def succeed_batch(stage: Stage) -> TxnFactory[list[Settled]]:
    _, one = held(stage, 2, name="one", stripes=2)
    _, two = held(stage, 1, name="two")
    return settling(*(succeed(claim) for claim in [*two, *one]))


@row("finish.settle", "a failure with others to come")
def fail_one(stage: Stage) -> TxnFactory[list[Settled]]:
    _, (one, _) = held(stage, 2)
    return settling(failure(one))


@row("finish.settle", "the last failure, tolerated")
def fail_last(stage: Stage) -> TxnFactory[list[Settled]]:
    _, (one,) = held(stage, 1, policy=Policy(tolerate=1))
    return settling(failure(one))


@row("finish.settle", "a failure that closes the job")
def fail_fast(stage: Stage) -> TxnFactory[list[Settled]]:
    _, (one, *_) = held(stage, 3, stripes=2, policy=Policy(fail_fast=True))
    return settling(failure(one))


@row("finish.settle", "the success that makes the quorum")
def quorum(stage: Stage) -> TxnFactory[list[Settled]]:
    _, (one, *_) = held(stage, 3, stripes=2, policy=Policy(quorum=1))
    return settling(succeed(one))


@row("finish.settle", "a retry, later")
def retry(stage: Stage) -> TxnFactory[list[Settled]]:
    _, (one,) = held(stage, 1)
    return settling(failure(one, "retry", delay=5.0))


@row("finish.settle", "a retry without an attempt left")
def retry_spent(stage: Stage) -> TxnFactory[list[Settled]]:
    _, (one,) = held(stage, 1, attempts=1)
    return settling(failure(one, "retry"))


@row("finish.settle", "a release")
def release(stage: Stage) -> TxnFactory[list[Settled]]:
    _, (one,) = held(stage, 1, attempts=1)
    return settling(Report(one, "release"))


@row("finish.settle", "a stale token, a closed job and a success in one batch")
def mixed(stage: Stage) -> TxnFactory[list[Settled]]:
    _, (stale,) = held(stage, 1, LAPSED, name="one")
    stage.store.run(lambda: lease.wake(BUCKET))
    stage.claims(1)
    closed, (late,) = held(stage, 1, name="two")
    stage.store.run(lambda: close.cancel(BUCKET, closed))
    _, (good,) = held(stage, 1, name="three")
    return settling(succeed(stale), succeed(late), succeed(good))


@row("exchange.exchange", "the reports of one batch and the claim of the next")
def exchange_all(stage: Stage) -> TxnFactory[Exchanged]:
    _, (late,) = held(stage, 1, name="closed")
    stage.store.run(lambda: close.cancel(BUCKET, late.job_id))
    _, (one,) = held(stage, 1)
    stage.job(2, "next")
    return stage.exchanging([succeed(late), succeed(one)])


@row("exchange.exchange", "successes that are judged, as the worker knows, of which one makes the quorum")
def exchange_stepwise(stage: Stage) -> TxnFactory[Exchanged]:
    job_id, (one, two, _) = held(stage, 3, policy=Policy(quorum=2))
    return stage.exchanging([succeed(one), succeed(two)], stepwise={job_id})


# Closing and opening again.


@row("close.cancel", "a running job")
def cancel(stage: Stage) -> TxnFactory[bool]:
    (job_id, _), deed = held(stage, 2, stripes=2), stage.deed()
    return lambda: close.cancel(BUCKET, job_id, deed)


@row("close.cancel", "an open job")
def cancel_open(stage: Stage) -> TxnFactory[bool]:
    job_id = stage.open(2, stripes=2)
    return lambda: close.cancel(BUCKET, job_id)


@row("close.finish_now", "a running job, whose successor follows")
def finish_now(stage: Stage) -> TxnFactory[bool]:
    (job_id, _), deed = held(stage, 2, stripes=2), stage.deed()
    return lambda: close.finish_now(BUCKET, job_id, deed)


@row("pause.pause", "a running job")
def pause_running(stage: Stage) -> TxnFactory[bool]:
    job_id, deed = stage.job(2), stage.deed()
    return lambda: pause.pause(BUCKET, job_id, deed)


@row("pause.resume", "a job whose parts are held back")
def resume_held(stage: Stage) -> TxnFactory[bool]:
    job_id, deed = stage.job(2), stage.deed()
    stage.paused(job_id)
    return lambda: pause.resume(BUCKET, job_id, deed)


@row("pause.walk", "the parts of a paused job")
def walk_hold(stage: Stage) -> TxnFactory[bool]:
    job_id, _ = held(stage, 1)
    stage.paused(other := stage.job(3, "other"), walked=False)
    stage.paused(job_id)
    return lambda: pause.walk(BUCKET, other)


@row("pause.walk", "the parts of a job that was resumed")
def walk_free(stage: Stage) -> TxnFactory[bool]:
    job_id = stage.job(3)
    stage.paused(job_id)
    stage.resumed(job_id)
    return lambda: pause.walk(BUCKET, job_id)


@row("submit.append", "parts for a paused job")
def append_paused(stage: Stage) -> TxnFactory[int]:
    job_id = stage.open(1)
    stage.paused(job_id)
    return lambda: submit.append(BUCKET, job_id, 1, ["2"])


@row("skip.skip", "a pending part")
def skip_pending(stage: Stage) -> TxnFactory[bool]:
    job_id, deed = stage.job(2), stage.deed()
    return lambda: skip.skip(BUCKET, job_id, 0, "1", deed)


@row("skip.skip", "the last part, which is held, as failed")
def skip_last(stage: Stage) -> TxnFactory[bool]:
    (job_id, _), deed = held(stage, 1, policy=Policy(tolerate=1)), stage.deed()
    return lambda: skip.skip(BUCKET, job_id, 0, None, deed)


@row("close.give_up", "going on with what has arrived")
def give_up(stage: Stage) -> TxnFactory[bool]:
    job_id, (one, _) = held(stage, 2, give_up_after=-1.0, policy=Policy(give_up="proceed"))
    stage.settled([succeed(one)])
    return lambda: close.give_up(BUCKET, job_id)


@row("close.too_old", "a step that is skipped, before one that starts")
def too_old(stage: Stage) -> TxnFactory[bool]:
    flow_id = stage.flow({"a": "", "b": "", "c": "a b"}, conditions={"c": "any"}, stale=["a"])
    stage.age()
    stage.ended("succeed")
    job_id = flows.job_of(stage.store, flow_id, "a")
    return lambda: close.too_old(BUCKET, job_id)


@row("close.too_old", "a job that has started in time")
def not_too_old(stage: Stage) -> TxnFactory[bool]:
    flow_id = stage.flow({"a": ""}, stale=["a"])
    stage.claims(1)
    stage.age()
    job_id = flows.job_of(stage.store, flow_id, "a")
    return lambda: close.too_old(BUCKET, job_id)


@row("close.give_up", "abandoning")
def abandon(stage: Stage) -> TxnFactory[bool]:
    job_id, _ = held(stage, 2, give_up_after=-1.0)
    return lambda: close.give_up(BUCKET, job_id)


@row("progress.tell", "a job of which a part has ended since the last time")
def tell_progress(stage: Stage) -> TxnFactory[bool]:
    job_id, (one, _) = held(stage, 2, progress_every=1e-9)
    stage.settled([succeed(one)])
    return lambda: progress.tell(BUCKET, job_id)


@row("finish.settle", "failures that are told, of a job that goes on and of one that ends")
def told_failures(stage: Stage) -> TxnFactory[list[Settled]]:
    stage.job(2, "goes on", failure_events=True, policy=Policy(tolerate=2))
    stage.job(1, "ends", failure_events=True)
    return settling(*map(failure, stage.claims(2)), *map(failure, stage.claims(1)))


@row("close.sweep", "a closed counter with a held and a pending part")
def sweep(stage: Stage) -> TxnFactory[int]:
    job_id = stage.job(2)
    stage.claims(1)
    stage.store.run(lambda: close.cancel(BUCKET, job_id))
    return lambda: close.sweep(BUCKET, job_id, 0)


def ended_job(stage: Stage) -> str:
    """A cancelled job with a failed, a succeeded, an abandoned and an unswept part."""
    job_id, (one, two, _, _) = held(stage, 4, stripes=4)
    stage.settled([failure(one), succeed(two)])
    stage.store.run(lambda: close.cancel(BUCKET, job_id))
    stage.store.run(lambda: close.sweep(BUCKET, job_id, 2))
    return job_id


@row("redrive.redrive", "everything")
def redrive_all(stage: Stage) -> TxnFactory[int]:
    job_id = ended_job(stage)
    return lambda: redrive.redrive(BUCKET, job_id, 1, 2, give_up_after=60.0)


@row("redrive.redrive", "a chosen part")
def redrive_chosen(stage: Stage) -> TxnFactory[int]:
    job_id = ended_job(stage)
    return lambda: redrive.redrive(BUCKET, job_id, 1, 2, [0])


# Events on their way out.


@row("outbox.take", "the events of two jobs")
def take_events(stage: Stage) -> TxnFactory[list[Event]]:
    stage.events(2)
    return stage.taking()


@row("outbox.take", "an event whose relay was lost once too often, beside a fresh one")
def take_spent(stage: Stage) -> TxnFactory[list[Event]]:
    stage.events(2)
    stage.wear_out(1)
    return stage.taking()


@row("outbox.settle", "one published, one refused, one parked, one unsent, one lost")
def settle_events(stage: Stage) -> TxnFactory[list[str]]:
    stage.events(5)
    claim_id, events = stage.taken(lease=-1.0, limit=1)
    lost = events[0].key
    _, again = stage.taken(lease=60.0, limit=1)
    assert [event.key for event in again] == [lost]
    claim_id, events = stage.taken()
    published, refused, parked, unsent = (event.key for event in events)
    said = [
        outbox.Said(parked, "park", error="never"), outbox.Said(refused, "refuse", 5.0, "not now"),
        outbox.Said(unsent, "release", 1.0), outbox.Said(published, "mark"), outbox.Said(lost, "mark"),
    ]  # fmt: skip
    return lambda: outbox.settle(BUCKET, claim_id, said)


@row("outbox.exchange", "one published and one lost, and the claim of the next")
def exchange_events(stage: Stage) -> TxnFactory[tuple[list[str], list[Event]]]:
    stage.events(4)
    stale, (first,) = stage.taken(lease=-1.0, limit=1)
    stage.taken(limit=1)
    claim_id, (second,) = stage.taken(limit=1)
    following = stage._claim_id()
    marks = [outbox.Said(event.key, "mark") for event in (first, second)]
    assert stale != claim_id
    return lambda: outbox.exchange(BUCKET, claim_id, marks, 10, 60.0, following, "r")


@row("outbox.retry", "a parked event beside a published one")
def retry_events(stage: Stage) -> TxnFactory[int]:
    stage.events(2)
    claim_id, (one, two) = stage.taken()
    said = [outbox.Said(one.key, "mark"), outbox.Said(two.key, "park", error="never")]
    stage.store.run(lambda: outbox.settle(BUCKET, claim_id, said))
    return lambda: outbox.retry(BUCKET)


# Outputs.


def staged(stage: Stage) -> tuple[Claim, Claim]:
    """Two held parts with an output each: the first one's is ready, the second one's is not."""
    _, (one, two) = held(stage, 2)
    for claim in (one, two):
        assert stage.store.run(lambda: outputs.stage(claim, "a", "/x"))
    assert stage.store.run(lambda: outputs.mark_ready(one, "a", 3, "digest"))
    return one, two


@row("outputs.stage", "beside one of the same part that is ready")
def stage_output(stage: Stage) -> TxnFactory[bool]:
    one, _ = staged(stage)
    return lambda: outputs.stage(one, "b", "/x")


@row("outputs.mark_ready", "an output that is staged")
def output_ready(stage: Stage) -> TxnFactory[bool]:
    _, two = staged(stage)
    return lambda: outputs.mark_ready(two, "a", 5, "digest")


@row("outputs.keep", "one that counts, one that may still count")
def keep_outputs(stage: Stage) -> TxnFactory[int]:
    one, _ = staged(stage)
    stage.settled([succeed(one)])
    return lambda: outputs.keep(BUCKET, 0.0)


@row("outputs.mark_swept", "an output of a part that failed")
def sweep_outputs(stage: Stage) -> TxnFactory[int]:
    one, two = staged(stage)
    stage.settled([failure(one), succeed(two)])
    lost = stage.store.read(lambda: outputs.lost(BUCKET, 0.0))
    assert len(lost) == 2, "that of the failed part, and the one that was never ready"
    return lambda: outputs.mark_swept(BUCKET, lost)


@row("outputs.forget", "swept outputs")
def forget_outputs(stage: Stage) -> TxnFactory[int]:
    one, two = staged(stage)
    stage.settled([failure(one), succeed(two)])
    lost = stage.store.read(lambda: outputs.lost(BUCKET, 0.0))
    assert stage.store.run(lambda: outputs.mark_swept(BUCKET, lost)) == 2
    return lambda: outputs.forget(BUCKET, lost)


# Effects.


def wanting(stage: Stage, *modes: str, calls: int = 3) -> tuple[Claim, list[Intent]]:
    """A held part, and what it wants done: one effect of each mode, called as the mode."""
    _, (one, _) = held(stage, 2)
    return one, [Intent(mode, mode, '{"to":"a"}', 1 if mode == "at_most_once" else calls) for mode in modes]


def wanted(stage: Stage, *modes: str, calls: int = 3) -> str:
    """A part that has succeeded and wants them done. Its job."""
    one, intents = wanting(stage, *modes, calls=calls)
    stage.settled([msgspec.structs.replace(succeed(one), effects=tuple(intents))])
    return one.job_id


@row("finish.settle", "a success that wants things done, one of which an attempt has tried")
def succeed_wanting(stage: Stage) -> TxnFactory[list[Settled]]:
    one, intents = wanting(stage, *MODES)
    call = stage.begun(one, intents[0])
    stage.store.run(lambda: effect.settle(BUCKET, [effect.Said(call, "refuse", error="no")]))
    return settling(msgspec.structs.replace(succeed(one), effects=tuple(intents)))


@row("exchange.exchange", "a success that wants things done")
def exchange_wanting(stage: Stage) -> TxnFactory[Exchanged]:
    one, intents = wanting(stage, "at_most_once", "idempotent")
    return stage.exchanging([msgspec.structs.replace(succeed(one), effects=tuple(intents))])


@row("effect.begin", "an effect that nobody has named")
def begin_effect(stage: Stage) -> TxnFactory[Begun]:
    one, (intent,) = wanting(stage, "at_most_once")
    return stage.beginning(one, intent)


@row("effect.begin", "an effect whose last call did not come back")
def begin_effect_again(stage: Stage) -> TxnFactory[Begun]:
    one, (intent,) = wanting(stage, "probe")
    stage.begun(one, intent, seconds=-1.0)
    return stage.beginning(one, intent)


@row("effect.take", "one that waits and one whose caller did not come back")
def take_effects(stage: Stage) -> TxnFactory[list[Call]]:
    wanted(stage, "idempotent")
    stage.called("idempotent", seconds=-1.0)
    stage.job(1, "another", successor=None)
    (one,) = stage.claims(1)
    intent = Intent("idempotent", "at_most_once", "1", 1)
    stage.settled([msgspec.structs.replace(succeed(one), effects=(intent,))])
    return stage.calling("idempotent")


@row("effect.settle", "one done, one refused, one that may have happened, and one that another holds")
def settle_effects(stage: Stage) -> TxnFactory[dict[effect.Key, str]]:
    wanted(stage, *MODES)
    calls = [stage.called(mode) for mode in MODES]
    stage.job(1, "another", successor=None)
    (one,) = stage.claims(1)
    intent = Intent("lost", "idempotent", "1", 3)
    stage.settled([msgspec.structs.replace(succeed(one), effects=(intent,))])
    lost = stage.called("lost", seconds=-1.0)
    stage.called("lost")
    said = [
        effect.Said(calls[0], "refuse", error="no", delay=5.0), effect.Said(calls[1], "mark", response="7"),
        effect.Said(calls[2], "refuse", error="?", doubtful=True), effect.Said(lost, "refuse", error="no"),
    ]  # fmt: skip
    return lambda: effect.settle(BUCKET, said)


@row("effect.expire", "a call that nobody may repeat, beside one that a relay may")
def expire_effects(stage: Stage) -> TxnFactory[list[effect.Key]]:
    wanted(stage, "at_most_once", "idempotent")
    for mode in ("at_most_once", "idempotent"):
        stage.called(mode, seconds=-1.0)
    return lambda: effect.expire(BUCKET)


@row("effect.by_hand", "one that may have happened")
def settle_by_hand(stage: Stage) -> TxnFactory[str]:
    job_id = wanted(stage, "at_most_once")
    stage.called("at_most_once", seconds=-1.0)
    stage.store.run(lambda: effect.expire(BUCKET))
    return lambda: effect.by_hand(BUCKET, (job_id, 0, "at_most_once"), True, '"seen"', "asked")


@row("effect.retry", "one that has failed, beside one that is done")
def retry_effects(stage: Stage) -> TxnFactory[list[effect.Key]]:
    job_id = wanted(stage, "idempotent", "probe", calls=1)
    said = [
        effect.Said(stage.called("idempotent"), "refuse", error="no"),
        effect.Said(stage.called("probe"), "mark", response="1"),
    ]
    stage.store.run(lambda: effect.settle(BUCKET, said))
    return lambda: effect.retry(BUCKET, [(job_id, 0, "idempotent"), (job_id, 0, "probe")], 2)


@row("effect.cancel", "one that waits, beside one that is being called")
def cancel_effects(stage: Stage) -> TxnFactory[int]:
    job_id = wanted(stage, "idempotent", "probe")
    stage.called("probe")
    return lambda: effect.cancel(BUCKET, job_id)


# Schedules.


@row("schedule.declare", "a schedule that is not known yet")
def declare(stage: Stage) -> TxnFactory[bool]:
    return lambda: schedule.declare(BUCKET, "nightly", "{}", "{}")


@row("schedule.declare", "another timing")
def redeclare(stage: Stage) -> TxnFactory[bool]:
    stage.scheduled()
    return lambda: schedule.declare(BUCKET, "nightly", "[]", "{}")


@row("schedule.fire", "a slot that has come")
def fire_slot(stage: Stage) -> TxnFactory[Fired]:
    stage.scheduled()
    return stage.firing(1.0)


@row("schedule.fire", "a slot that has come while the job before is live")
def skip_slot(stage: Stage) -> TxnFactory[Fired]:
    stage.scheduled()
    stage.store.run(stage.firing(1.0))
    return stage.firing(2.0, seen=1.0)


@row("schedule.fire", "what an operator asked for")
def fire_by_hand(stage: Stage) -> TxnFactory[Fired]:
    stage.scheduled()
    asked = stage.store.run(lambda: schedule.ask(BUCKET, "nightly"))
    return stage.firing(asked, by_hand=True)


@row("schedule.fire", "a slot more than is kept")
def trim_slots(stage: Stage) -> TxnFactory[Fired]:
    stage.scheduled()
    seen = 0.0
    for n in range(limits.SCHEDULE_FIRINGS):
        stage.store.run(stage.firing(n + 1.0, seen=seen, parts=0))
        seen = n + 1.0
    return stage.firing(seen + 1, seen=seen, parts=0)


@row("schedule.pass_over", "slots that came too late")
def pass_slots(stage: Stage) -> TxnFactory[bool]:
    stage.scheduled()
    return lambda: schedule.pass_over(BUCKET, schedule.Slot("nightly", 9.0, 0.0, 9))


@row("schedule.fill", "a slot that was missed")
def fill_slot(stage: Stage) -> TxnFactory[bool]:
    pass_slots(stage)
    stage.store.run(lambda: schedule.pass_over(BUCKET, schedule.Slot("nightly", 9.0, 0.0, 9)))
    return lambda: schedule.fill(BUCKET, schedule.Slot("nightly", 9.0), stage.of_slot(9.0))


@row("schedule.pause", "with a note")
def pause_schedule(stage: Stage) -> TxnFactory[bool]:
    stage.scheduled()
    return lambda: schedule.pause(BUCKET, "nightly", "stock-taking")


@row("schedule.resume", "after slots have passed")
def resume_schedule(stage: Stage) -> TxnFactory[bool]:
    stage.scheduled()
    stage.store.run(lambda: schedule.pause(BUCKET, "nightly", None))
    return lambda: schedule.resume(BUCKET, "nightly")


@row("schedule.ask", "for a firing now")
def ask_schedule(stage: Stage) -> TxnFactory[float]:
    stage.scheduled()
    return lambda: schedule.ask(BUCKET, "nightly")


@row("schedule.note_error", "why a slot is not fired")
def note_error(stage: Stage) -> TxnFactory[bool]:
    stage.scheduled()
    return lambda: schedule.note_error(BUCKET, "nightly", "ValueError: no")


@row("schedule.forget", "a schedule that has fired")
def forget_schedule(stage: Stage) -> TxnFactory[bool]:
    stage.scheduled()
    stage.store.run(stage.firing(1.0))
    return lambda: schedule.forget(BUCKET, "nightly")


# Purging.


def old_tree(stage: Stage) -> tuple[list[purge.Member], str]:
    """A job that grew, with a retried part and an output, and its successor: ended, and their events have left."""
    one, two = growing(stage)
    job_id = one.job_id
    assert stage.store.run(lambda: outputs.stage(one, "a", "/x"))
    assert stage.store.run(lambda: outputs.mark_ready(one, "a", 3, "digest"))
    stage.settled([succeed(one), failure(two, "retry")])
    stage.drain()
    claim_id, events = stage.taken()
    said = [outbox.Said(event.key, "mark") for event in events]
    stage.store.run(lambda: outbox.settle(BUCKET, claim_id, said))
    return stage.store.read(lambda: purge.tree([BUCKET], (BUCKET, job_id))), job_id


def purged(stage: Stage) -> str:
    members, job_id = old_tree(stage)
    assert stage.store.run(lambda: purge.purge([BUCKET], members, 0.0)).kept is None
    return job_id


@row("purge.purge", "a job and its successor")
def purge_tree(stage: Stage) -> TxnFactory[purge.Tree]:
    members, _ = old_tree(stage)
    return lambda: purge.purge([BUCKET], members, 0.0, outputs=True)


@row("purge.purge", "a flow that was undone")
def purge_flow(stage: Stage) -> TxnFactory[purge.Tree]:
    flow_id = stage.flow({"a": "", "b": "a"}, undo=["a"])
    stage.ended("succeed", "fail", "succeed")
    stage.drain()
    claim_id, events = stage.taken()
    stage.store.run(lambda: outbox.settle(BUCKET, claim_id, [outbox.Said(one.key, "mark") for one in events]))
    members = stage.store.read(lambda: purge.flow_tree([BUCKET], (BUCKET, flow_id)))
    return lambda: purge.purge([BUCKET], members, 0.0, flow=(BUCKET, flow_id))


@row("purge.forget_outputs", "an output of a purged job")
def forget_purged(stage: Stage) -> TxnFactory[int]:
    job_id = purged(stage)
    found, _ = stage.store.read(lambda: purge.left_outputs(BUCKET, job_id))
    assert len(found) == 1
    return lambda: purge.forget_outputs(BUCKET, job_id, found)


def without_outputs(stage: Stage) -> str:
    job_id = purged(stage)
    found, _ = stage.store.read(lambda: purge.left_outputs(BUCKET, job_id))
    assert stage.store.run(lambda: purge.forget_outputs(BUCKET, job_id, found)) == 1
    return job_id


@row("submit.create", "a job that the handler of another asks for")
def create_below(stage: Stage) -> TxnFactory[bool]:
    above = stage.job(1, "above")
    new = stage.new("below", parent_id=above, parent_bucket=BUCKET, root_id=above, depth=1)
    return lambda: submit.create(new, 2, lambda: [["1", "2"]])


def all_portions(home: purge.Member) -> TxnFactory[int]:
    """In one transaction; above too, where this is the last."""

    def all_of_them() -> Txn[int]:
        portions = 0
        going: purge.Member | None = home
        while going is not None:
            going = yield from purge.portion(1, going)
            portions += 1
        return portions

    return all_of_them


@row("purge.portion", "all that is left of a job above another, in one transaction")
def purge_portions(stage: Stage) -> TxnFactory[int]:
    return all_portions((BUCKET, without_outputs(stage)))


@row("purge.portion", "all that is left of a tree, in one transaction")
def purge_portions_from_below(stage: Stage) -> TxnFactory[int]:
    return all_portions((BUCKET, successor_id(without_outputs(stage), "then", 1)))


# Flows.


CHAIN = {"a": "", "b": "a", "c": "b"}


@row("flow.create", "two steps that start at once, and one behind both")
def create_flow(stage: Stage) -> TxnFactory[bool]:
    new = flows.plan({"a": "", "b": "", "c": "a b"}, task=TASK, queue=QUEUE, key="k", give_up_after=60.0)
    return lambda: flow.create(new)


@row("flow.create", "two steps that would start at once, after the deadline")
def create_late_flow(stage: Stage) -> TxnFactory[bool]:
    new = flows.plan({"a": "", "b": "", "c": "a b"}, task=TASK, queue=QUEUE, key="k", give_up_after=0.0)
    return lambda: flow.create(new)


@row("finish.settle", "the last step before one that starts, and before one that is skipped with what stands behind")
def step_starts(stage: Stage) -> TxnFactory[list[Settled]]:
    stage.flow({"a": "", "b": "a", "no": "a", "behind": "no"}, conditions={"no": "failed"})
    return settling(succeed(stage.step()))


@row("finish.settle", "the two last steps before one, in one batch")
def steps_start(stage: Stage) -> TxnFactory[list[Settled]]:
    stage.flow({"a": "", "b": "", "c": "a b"})
    return settling(succeed(stage.step()), succeed(stage.step()))


@row("finish.settle", "the last step of a flow")
def flow_completes(stage: Stage) -> TxnFactory[list[Settled]]:
    stage.flow({"a": ""})
    return settling(succeed(stage.step()))


@row("finish.settle", "the last step of a flow to which a task listens")
def heard_flow_completes(stage: Stage) -> TxnFactory[list[Settled]]:
    heard = {"flow.finished": [Spec(task=THEN, step="on/told")]}
    stage.flow({"a": ""}, listeners=msgspec.json.encode(heard).decode())
    return settling(succeed(stage.step()))


@row("flow.resolve", "the last step that waits for a person, given up, with one before it that is to be undone")
def give_up_undo(stage: Stage) -> TxnFactory[None]:
    flow_id, deed = stage.flow(CHAIN, undo=["a", "b"]), stage.deed()
    stage.ended("succeed", "succeed", "fail", "fail")
    return lambda: flow.resolve(BUCKET, flow_id, "b", "not_undone", deed)


@row("finish.settle", "a step that fails beside one that runs")
def flow_stops(stage: Stage) -> TxnFactory[list[Settled]]:
    stage.flow({"a": "", "b": "", "c": "a b"})
    return settling(failure(stage.step()))


@row("finish.settle", "the last failure of a flow of which a step is undone, with a call that is not made any more")
def undo_begins(stage: Stage) -> TxnFactory[list[Settled]]:
    stage.flow(CHAIN, undo=["a", "b"])
    stage.ended("succeed")
    intent = Intent("mail", "idempotent", "{}", 3)
    stage.settled([msgspec.structs.replace(succeed(stage.step()), effects=(intent,))])
    return settling(failure(stage.step()))


@row("finish.settle", "the undo of a step whose effect was done, and the next one begins")
def undo_goes_on(stage: Stage) -> TxnFactory[list[Settled]]:
    stage.flow(CHAIN, undo=["a", "b"])
    stage.ended("succeed")
    intent = Intent("mail", "idempotent", "{}", 3)
    stage.settled([msgspec.structs.replace(succeed(stage.step()), effects=(intent,))])
    call = stage.called("mail")
    stage.store.run(lambda: effect.settle(BUCKET, [effect.Said(call, "mark", response="1")]))
    stage.ended("fail")
    return settling(succeed(stage.step()))


@row("finish.settle", "the last undo of a flow")
def undo_ends(stage: Stage) -> TxnFactory[list[Settled]]:
    stage.flow({"a": "", "b": "a"}, undo=["a"])
    stage.ended("succeed", "fail")
    return settling(succeed(stage.step()))


@row("close.finish_now", "an undo, while the job below it goes on")
def undo_is_finished(stage: Stage) -> TxnFactory[bool]:
    stage.flow({"a": "", "b": "a"}, undo=["a"])
    stage.ended("succeed", "fail")
    undo, deed = stage.step(), stage.deed()
    stage.waiting(undo)
    return lambda: close.finish_now(BUCKET, undo.job_id, deed)


@row("finish.settle", "an undo that fails")
def undo_fails(stage: Stage) -> TxnFactory[list[Settled]]:
    stage.flow({"a": "", "b": "a"}, undo=["a"])
    stage.ended("succeed", "fail")
    return settling(failure(stage.step()))


@row("finish.settle", "the last failure of a flow of which a person undoes a step")
def undo_by_hand(stage: Stage) -> TxnFactory[list[Settled]]:
    stage.flow({"a": "", "b": "a"}, manual=["a"])
    stage.ended("succeed")
    return settling(failure(stage.step()))


@row("flow.cancel", "a flow with a step that runs")
def cancel_flow(stage: Stage) -> TxnFactory[bool]:
    flow_id, deed = stage.flow(CHAIN), stage.deed()
    return lambda: flow.cancel(BUCKET, flow_id, deed)


@row("flow.end_running", "the last job of a flow that was stopped")
def end_running(stage: Stage) -> TxnFactory[bool]:
    flow_id = stage.flow(CHAIN)
    job_id = stage.step().job_id
    stage.store.run(lambda: flow.cancel(BUCKET, flow_id))
    return lambda: flow.end_running(BUCKET, job_id)


@row("flow.give_up", "a flow whose deadline has passed")
def give_up_flow(stage: Stage) -> TxnFactory[bool]:
    flow_id = stage.flow(CHAIN, give_up_after=-1.0)
    return lambda: flow.give_up(BUCKET, flow_id)


@row("flow.run_again", "a flow that failed in two branches")
def redrive_flow(stage: Stage) -> TxnFactory[int]:
    flow_id, deed = stage.flow({"a": "", "b": "", "c": "a b"}, fail_fast=False), stage.deed()
    stage.ended("fail", "fail")
    return lambda: flow.run_again(BUCKET, flow_id, 1, done=deed)


@row("flow.run_again", "a flow that was stopped in its last step")
def redrive_done(stage: Stage) -> TxnFactory[int]:
    flow_id, deed = stage.flow({"a": ""}), stage.deed()
    held = stage.step()
    stage.store.run(lambda: flow.cancel(BUCKET, flow_id))
    stage.settled([succeed(held)])
    return lambda: flow.run_again(BUCKET, flow_id, 1, done=deed)


@row("flow.run_again", "a flow that was stopped between two steps")
def redrive_between(stage: Stage) -> TxnFactory[int]:
    flow_id, deed = stage.flow(CHAIN), stage.deed()
    held = stage.step()
    stage.store.run(lambda: flow.cancel(BUCKET, flow_id))
    stage.settled([succeed(held)])
    return lambda: flow.run_again(BUCKET, flow_id, 1, done=deed)


def failed_behind(stage: Stage, **options: Any) -> str:
    """a has failed, and b and c behind it. b takes any end of a, and c its failure."""
    flow_id = stage.flow({"a": "", "b": "a", "c": "a"}, conditions={"b": "any", "c": "failed"}, **options)
    stage.ended("fail", "fail", "fail")
    assert set(flows.states(stage.store, flow_id).values()) == {"failed"}
    return flow_id


@row("flow.run_again", "a flow with steps that failed behind one that failed")
def redrive_behind(stage: Stage) -> TxnFactory[int]:
    flow_id = failed_behind(stage, joins=["b"])
    return lambda: flow.run_again(BUCKET, flow_id, 1)


@row("flow.run_again", "a flow with a step that failed behind one that is done")
def redrive_after_done(stage: Stage) -> TxnFactory[int]:
    flow_id = stage.flow(CHAIN, joins=["b"])
    stage.ended("succeed", "fail")
    return lambda: flow.run_again(BUCKET, flow_id, 1)


@row("finish.settle", "a step that is done before one that had failed and is told so, and one that is not to run now")
def tell_other(stage: Stage) -> TxnFactory[list[Settled]]:
    flow_id = failed_behind(stage, joins=["b"])
    stage.store.run(lambda: flow.run_again(BUCKET, flow_id, 1))
    return settling(succeed(stage.step()))


@row("finish.settle", "a step that fails again before one that had failed, and is told nothing")
def tell_same(stage: Stage) -> TxnFactory[list[Settled]]:
    flow_id = failed_behind(stage)
    stage.store.run(lambda: flow.run_again(BUCKET, flow_id, 1))
    return settling(failure(stage.step()))


@row("finish.settle", "a step that is done before one that somebody has held since it was stopped")
def tell_held(stage: Stage) -> TxnFactory[list[Settled]]:
    return settling(succeed(stopped_behind(stage)[1]))


@row("finish.settle", "a step that is done before one that has left a job behind")
def tell_waiting(stage: Stage) -> TxnFactory[list[Settled]]:
    return settling(succeed(stopped_behind(stage, nests=True)[1]))


def stopped_behind(stage: Stage, nests: bool = False) -> list[Claim]:
    """Who has held the part of b since the flow was stopped, and who holds that of a before it: the flow runs again.

    ``nests``: b waits for a job of its own, which still goes on; the third holds the part of that.
    """
    flow_id = stage.flow({"a": "", "b": "a"}, conditions={"b": "any"}, mapped=["b"])
    stage.ended("fail")
    behind = stage.step()
    below = []
    if nests:
        stage.waiting(behind, priority=5)
        below = stage.claims(1)
    flows.cancel(stage.store, flow_id)
    assert stage.store.run(lambda: flow.run_again(BUCKET, flow_id, 1)) == 2
    return [behind, stage.step(), *below]


def undo_failed(stage: Stage) -> str:
    """The undo of b has failed, a is still to be undone."""
    flow_id = stage.flow(CHAIN, undo=["a", "b"])
    stage.ended("succeed", "succeed", "fail", "fail")
    return flow_id


@row("flow.resolve", "a step that a person has undone, the last one to be undone")
def resolve_last(stage: Stage) -> TxnFactory[None]:
    flow_id, deed = stage.flow(CHAIN, manual=["a"]), stage.deed()
    stage.ended("succeed", "succeed", "fail")
    return lambda: flow.resolve(BUCKET, flow_id, "a", "undone", deed)


@row("flow.resolve", "a step that waits for a person, with one before it that is to be undone")
def resolve_step(stage: Stage) -> TxnFactory[None]:
    flow_id, deed = undo_failed(stage), stage.deed()
    return lambda: flow.resolve(BUCKET, flow_id, "b", "nothing_to_undo", deed)


@row("flow.undo_again", "an undo that has failed")
def undo_once_more(stage: Stage) -> TxnFactory[None]:
    flow_id, deed = undo_failed(stage), stage.deed()
    return lambda: flow.undo_again(BUCKET, flow_id, "b", deed)
