"""The rest of the table: parts that end with a job of their own."""

from __future__ import annotations

from typing import Any

import msgspec

from fanin.domain import limits
from fanin.domain.flows import BATCH
from fanin.domain.model import Claim, Settled, Spec
from fanin.domain.policy import Policy
from fanin.protocol import close, lease, nest, pause, redrive, split
from fanin.protocol.exchange import Exchanged
from fanin.protocol.nest import Nested
from fanin.protocol.steps import TxnFactory
from tests.crashes.table import TABLE, failure, held, row, settling
from tests.races.stage import BUCKET, LAPSED, THEN, Stage, succeed

__all__ = ["TABLE"]


def waiting(stage: Stage, parts: int = 1, above: int = 2, nested: int = 1, **options: Any) -> tuple[str, list[Claim]]:
    """A job of ``above`` parts whose first waits for a job of ``parts`` parts, of which ``nested`` are claimed."""
    stage.job(above, **options)
    (one,) = stage.claims(1)
    return stage.waiting(one, parts, priority=5), stage.claims(nested)


@row("nest.nest", "a job that is made")
def nest_fresh(stage: Stage) -> TxnFactory[tuple[Nested, str]]:
    _, (one, _) = held(stage, 2)
    return stage.nesting(one, 2)


@row("nest.nest", "a job without parts")
def nest_empty(stage: Stage) -> TxnFactory[tuple[Nested, str]]:
    _, (one, _) = held(stage, 2)
    return stage.nesting(one, 0)


@row("nest.refuse", "a job that may not be")
def nest_refused(stage: Stage) -> TxnFactory[None]:
    _, (one, _) = held(stage, 2)
    return stage.refusing(one)


@row("split.create", "a job of three batches")
def split_fresh(stage: Stage) -> TxnFactory[bool]:
    job = stage.new(batch=2)
    return lambda: split.create(job, 5, lambda: [["1", "2", "3"], ["4", "5"]])


@row("nest.nest", "a job that is split")
def nest_split(stage: Stage) -> TxnFactory[tuple[Nested, str]]:
    _, (one, _) = held(stage, 2)
    return stage.nesting(one, 3, batch=2)


def batch(stage: Stage) -> tuple[str, Claim]:
    """A job of two batches, the first of which is claimed, with no other part ready."""
    job = stage.new(batch=2)
    stage.store.run(lambda: split.create(job, 3, lambda: [["1"] * 3]))
    first, _ = stage.claims(2, {BATCH: 600.0})
    return job.id, first


@row("nest.rejoin", "a batch of a split job")
def rejoin_first(stage: Stage) -> TxnFactory[tuple[Nested, str]]:
    _, one = batch(stage)
    job = stage.nested(one)
    return lambda: nest.rejoin(one, job)


@row("pause.pause", "a split job, one batch of which waits")
def pause_split(stage: Stage) -> TxnFactory[bool]:
    (job_id, one), deed = batch(stage), stage.deed()
    stage.store.run(lambda: nest.rejoin(one, stage.nested(one)))
    return lambda: pause.pause(BUCKET, job_id, deed)


@row("pause.resume", "a split job, of which the items of one batch are held back")
def resume_split(stage: Stage) -> TxnFactory[bool]:
    (job_id, one), deed = batch(stage), stage.deed()
    stage.paused(job_id)
    stage.store.run(lambda: pause.walk(BUCKET, stage.nested(one).id))
    return lambda: pause.resume(BUCKET, job_id, deed)


@row("nest.rejoin", "a batch of a later run, whose job has kept the pause of an earlier one")
def rejoin_paused(stage: Stage) -> TxnFactory[tuple[Nested, str]]:
    job_id, one = batch(stage)
    stage.paused(job_id)
    stage.store.run(lambda: close.cancel(BUCKET, job_id))
    stage.store.run(lambda: close.sweep(BUCKET, job_id, 0))
    stage.store.run(lambda: redrive.redrive(BUCKET, job_id, 1, 2))
    again, _ = stage.claims(2, {BATCH: 600.0})
    assert again.key == one.key
    return lambda: nest.rejoin(again, stage.nested(again))


@row("nest.rejoin", "a batch that is run again while the whole is paused")
def rejoin_under_a_pause(stage: Stage) -> TxnFactory[tuple[Nested, str]]:
    job_id, one = batch(stage)
    for closed in (stage.nested(one).id, job_id):
        stage.store.run(lambda closed=closed: close.cancel(BUCKET, closed))  # type: ignore[misc]
        stage.store.run(lambda closed=closed: close.sweep(BUCKET, closed, 0))  # type: ignore[misc]
    stage.store.run(lambda: redrive.redrive(BUCKET, job_id, 1, 2))
    again, _ = stage.claims(2, {BATCH: 600.0})
    assert again.key == one.key
    stage.paused(job_id, walked=False)
    return lambda: nest.rejoin(again, stage.nested(again))


def lost_while_waiting(stage: Stage) -> Claim:
    """A part whose nested job goes on, held again after its job was cancelled, swept and redriven."""
    job_id, (one,) = held(stage, 1)
    stage.waiting(one, 2, priority=5)
    stage.store.run(lambda: close.cancel(BUCKET, job_id))
    assert stage.store.run(lambda: close.sweep(BUCKET, job_id, 0)) == 1
    assert stage.store.run(lambda: redrive.redrive(BUCKET, job_id, 1, 2)) == 2
    nested = stage.claims(2)
    (again,) = stage.claims(1)
    assert again.key == one.key
    stage.settled([succeed(nested[0])])
    return again


@row("nest.nest", "a job that goes on since an earlier attempt")
def nest_live(stage: Stage) -> TxnFactory[tuple[Nested, str]]:
    return stage.nesting(lost_while_waiting(stage), 2, priority=5)


@row("nest.nest", "a job that an earlier attempt has left behind, cancelled")
def nest_redriven(stage: Stage) -> TxnFactory[tuple[Nested, str]]:
    again = lost_while_waiting(stage)
    stage.store.run(lambda: close.cancel(BUCKET, stage.nested(again).id))
    return stage.nesting(again, 2, priority=5)


@row("nest.nest", "a job of other items, in the place of one that goes on since an earlier run")
def nest_anew(stage: Stage) -> TxnFactory[tuple[Nested, str]]:
    return stage.nesting(lost_while_waiting(stage), 3, anew="other", priority=5)


@row("nest.nest", "a job of other items, in the place of one that has ended")
def nest_anew_after(stage: Stage) -> TxnFactory[tuple[Nested, str]]:
    again = lost_while_waiting(stage)
    stage.store.run(lambda: close.cancel(BUCKET, stage.nested(again).id))
    return stage.nesting(again, 3, anew="other", priority=5)


@row("finish.settle", "the last success below a part that waits, with others to come")
def rise(stage: Stage) -> TxnFactory[list[Settled]]:
    _, (last,) = waiting(stage)
    return settling(succeed(last))


@row("finish.settle", "the last success below the last part, which ends both jobs")
def rise_last(stage: Stage) -> TxnFactory[list[Settled]]:
    _, (last,) = waiting(stage, above=1)
    return settling(succeed(last))


@row("finish.settle", "the last failure below a part that waits")
def rise_failed(stage: Stage) -> TxnFactory[list[Settled]]:
    _, (last,) = waiting(stage)
    return settling(failure(last))


@row("finish.settle", "the last failure below a part whose failure closes its job")
def rise_fail_fast(stage: Stage) -> TxnFactory[list[Settled]]:
    _, (last,) = waiting(stage, above=3, stripes=2, policy=Policy(fail_fast=True))
    return settling(failure(last))


@row("finish.settle", "the last success below a part that makes the quorum")
def rise_quorum(stage: Stage) -> TxnFactory[list[Settled]]:
    _, (last,) = waiting(stage, above=3, stripes=2, policy=Policy(quorum=1))
    return settling(succeed(last))


@row("finish.settle", "the last success below a part of a job that is closed")
def rise_closed(stage: Stage) -> TxnFactory[list[Settled]]:
    _, (last,) = waiting(stage)
    stage.store.run(lambda: close.cancel(BUCKET, stage.new().id))
    return settling(succeed(last))


@row("finish.settle", "the last success two levels below, which ends three jobs")
def rise_twice(stage: Stage) -> TxnFactory[list[Settled]]:
    _, (middle,) = waiting(stage, above=1)
    stage.waiting(middle, priority=9)
    (last,) = stage.claims(1)
    return settling(succeed(last))


@row("finish.settle", "the last success below a part that waits for a successor as well")
def rise_later(stage: Stage) -> TxnFactory[list[Settled]]:
    _, (one, _) = held(stage, 2)
    stage.waiting(one, successor=msgspec.json.encode(Spec(task=THEN)).decode())
    (last,) = stage.claims(1)
    return settling(succeed(last))


@row("finish.settle", "the last success below a part whose successor would stand too deep")
def rise_refused(stage: Stage) -> TxnFactory[list[Settled]]:
    _, (one, _) = held(stage, 2)
    successor = msgspec.json.encode(Spec(task=THEN)).decode()
    stage.waiting(one, successor=successor, depth=limits.JOB_DEPTH_LEVELS)
    (last,) = stage.claims(1)
    return settling(succeed(last))


@row("exchange.exchange", "the last success below a part that waits, and the claim of what comes next")
def exchange_rise(stage: Stage) -> TxnFactory[Exchanged]:
    _, (last,) = waiting(stage)
    return stage.exchanging([succeed(last)])


@row("close.cancel", "a nested job")
def cancel_nested(stage: Stage) -> TxnFactory[bool]:
    (nested, _), deed = waiting(stage, 2), stage.deed()
    return lambda: close.cancel(BUCKET, nested, deed)


@row("lease.reap", "the last part below a part that waits")
def reap_nested(stage: Stage) -> TxnFactory[int]:
    _, (one, _) = held(stage, 2)
    stage.waiting(one, attempts=1)
    stage.claims(1, LAPSED)
    return lambda: lease.reap(BUCKET)


@row("close.sweep", "a part that waits")
def sweep_waiting(stage: Stage) -> TxnFactory[int]:
    waiting(stage)
    job_id = stage.new().id
    stage.store.run(lambda: close.cancel(BUCKET, job_id))
    return lambda: close.sweep(BUCKET, job_id, 0)


def orphan(stage: Stage) -> tuple[str, str]:
    """A cancelled job whose part is swept, and the nested job that goes on."""
    nested, _ = waiting(stage, 2)
    job_id = stage.new().id
    stage.store.run(lambda: close.cancel(BUCKET, job_id))
    stage.store.run(lambda: close.sweep(BUCKET, job_id, 0))
    return job_id, nested


@row("nest.abandon", "a nested job whose part was swept")
def abandon_nested(stage: Stage) -> TxnFactory[bool]:
    job_id, nested = orphan(stage)
    return lambda: nest.abandon(BUCKET, nested, job_id, 0)


@row("nest.forget", "a part whose nested job was cancelled")
def forget_nested(stage: Stage) -> TxnFactory[bool]:
    job_id, nested = orphan(stage)
    stage.store.run(lambda: nest.abandon(BUCKET, nested, job_id, 0))
    return lambda: nest.forget(BUCKET, job_id, 0)


def all_waiting(stage: Stage) -> list[Claim]:
    """The claims of two nested jobs, for which all parts of a job wait."""
    stage.job(2)
    for one in stage.claims(2):
        stage.waiting(one, priority=5)
    return stage.claims(2)


@row("finish.settle", "a batch in which two nested jobs end, and the job above")
def rises_in_a_crowd(stage: Stage) -> TxnFactory[list[Settled]]:
    return settling(*map(succeed, all_waiting(stage)))


@row("finish.settle", "a batch in which two nested jobs end, one badly")
def rises_in_a_crowd_and_fails(stage: Stage) -> TxnFactory[list[Settled]]:
    good, bad = all_waiting(stage)
    return settling(succeed(good), failure(bad))
