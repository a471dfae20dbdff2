"""Who meets whom: parts that wait for nested jobs, and the steps of a flow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from fanin.domain import identity
from fanin.domain.model import Claim, NewJob, Report
from fanin.domain.states import FLOW_LIVE, JOB_ENDED
from fanin.protocol import close, effect, finish, flow, nest, redrive, skip
from fanin.protocol.deeds import Deed
from fanin.protocol.effect import Said
from fanin.protocol.steps import TxnFactory
from tests.model.explore import Op, Scenario, World, alone
from tests.model.graph_rows import FLOW, LIVE, Flow, Job, Part, Step, Stripe, history, violations
from tests.model.graph_world import GraphRules
from tests.model.world import Key

TOP = "0a000000-0000-0000-0000-000000000001"
LOW, LOW2 = identity.nested_id(TOP, 0), identity.nested_id(TOP, 1)
"""The jobs for which its parts wait."""


def claim_of(job_id: str, idx: int, row: Any) -> Claim:
    return Claim(0, job_id, idx, "t", row.attempt, row.claim, row.allowed, "1", None, False, 0)


def report(claim: Claim, verb: str = "succeed") -> TxnFactory[Any]:
    said = Report(claim, verb, f'"{claim.claim_id}"' if verb == "succeed" else None)
    return lambda: finish.settle(0, [said], "w")


def nesting(claim: Claim) -> TxnFactory[Any]:
    """The holder of a part that ends with a job of one part."""
    new = NewJob(
        id=identity.nested_id(claim.job_id, claim.idx), bucket=0, task="t", queue="q", request_hash="hash", depth=1,
        parent_id=claim.job_id, waiter_id=claim.job_id, waiter_idx=claim.idx,
    )  # fmt: skip
    return lambda: nest.nest(claim, new, 1, lambda: [["1"]])


# The transactions that actors are made of.


def said(job_id: str, verb: str = "succeed", idx: int = 0, claim: str = "a", attempt: int = 1) -> Op:
    """A report about a part that is held."""
    held = Claim(0, job_id, idx, "t", attempt, claim, 9, "1", None, False, 0)
    return Op(verb, lambda _: report(held, verb))


def both(verb: str) -> Op:
    """A worker that holds a part, and the part of its nested job, reports on both in one batch."""
    held = [Claim(0, job_id, 0, "t", n, c, 9, "1", None, False, 0) for job_id, n, c in ((LOW, 1, "a"), (TOP, 2, "b"))]
    reports = [Report(held[0], "succeed", '"a"'), Report(held[1], verb)]
    return Op("batch", lambda _: lambda: finish.settle(0, reports, "w"))


def nested(idx: int = 0, claim: str = "a", attempt: int = 1) -> Op:
    held = Claim(0, TOP, idx, "t", attempt, claim, 9, "1", None, False, 0)
    return Op("nest", lambda _: nesting(held))


def cancel(job_id: str) -> Op:
    return Op(f"cancel {'top' if job_id == TOP else 'job'}", lambda _: lambda: close.cancel(0, job_id))


def give_up(job_id: str) -> Op:
    return Op("give up", lambda _: lambda: close.give_up(0, job_id))


def sweep(job_id: str) -> Op:
    return Op("sweep", lambda _: lambda: close.sweep(0, job_id, 0))


def redriven(job_id: str) -> Op:
    return Op("redrive", lambda _: lambda: redrive.redrive(0, job_id, 1, 2))


def abandon(job_id: str, idx: int = 0) -> Op:
    return Op("abandon", lambda _: lambda: nest.abandon(0, job_id, TOP, idx))


BY_HAND = Deed("0d000000-0000-0000-0000-000000000002", None, None)


def skipped(idx: int = 0) -> Op:
    deed = Deed("0d000000-0000-0000-0000-000000000001", None, None)
    return Op("skip", lambda _: lambda: skip.skip(0, TOP, idx, f'"{deed.id}"', deed))


def again(seen: int = 1) -> Op:
    return Op("run again", lambda _: lambda: flow.run_again(0, FLOW, seen, done=BY_HAND))


STOP = Op("stop", lambda _: lambda: flow.cancel(0, FLOW, BY_HAND))


def resolve(n: int, status: str = "undone") -> Op:
    return Op("resolve", lambda _: lambda: flow.resolve(0, FLOW, f"s{n}", status, BY_HAND))


def undo_again(n: int) -> Op:
    return Op("undo again", lambda _: lambda: flow.undo_again(0, FLOW, f"s{n}", BY_HAND))


# Where they begin.


def held(claim: str = "a", attempt: int = 1, **more: Any) -> Part:
    return Part("running", False, attempt, 9, claim, **more)


def waiting(parts: int = 1, nests: int = 1, policy: str = "{}") -> dict[Key, Any]:
    """A job of so many parts, the first ``nests`` of which wait for a job of one part each; all others are held."""
    rows: dict[Key, Any] = {("job", TOP): Job(policy=policy), ("stripe", TOP): Stripe(parts)}
    for idx in range(parts):
        if idx >= nests:
            rows["part", TOP, idx] = held("abc"[idx])
            continue
        low = (LOW, LOW2)[idx]
        rows["part", TOP, idx] = held("abc"[idx], waiting=True, nested=low)
        rows |= {("job", low): Job(waiter=(TOP, idx)), ("stripe", low): Stripe(), ("part", low, 0): held()}
    return rows


def run_again_above() -> dict[Key, Any]:
    """The part of a job in its second run is held anew; the job for which it waited in the first goes on."""
    rows = waiting()
    rows["job", TOP] = Job(run=2)
    rows["event", f"job/{TOP}/finished/1"] = (1,)
    rows["part", TOP, 0] = held("b", 2, nested=LOW)
    return rows


def left_behind() -> dict[Key, Any]:
    """The part of a cancelled job was swept while it waited: its nested job goes on for nobody."""
    rows = waiting()
    rows |= {("job", TOP): Job("cancelled", open=0), ("stripe", TOP): Stripe(0, 0, 0, 1, True)}
    rows["part", TOP, 0] = Part("abandoned", False, 1, 9, "a", nested=LOW)
    rows["event", f"job/{TOP}/finished/1"] = (1,)
    return rows


UNDO = '{"plan":{"task":"t","what":"undo","queue":"q"},"queue":"q"}'


def flow_of(
    steps: Sequence[Sequence[int]], *, on: dict[int, str] | None = None, undo: bool = True, fail_fast: bool = True
) -> dict[Key, Any]:
    """A flow; ``steps`` gives for each the steps before it. The first ones run, and their parts are held."""
    rows: dict[Key, Any] = {}
    for n, after in enumerate(steps):
        behind = tuple(m for m, before in enumerate(steps) if n in before)
        job_id = None if after else identity.step_id(FLOW, n)
        status, condition = ("waiting" if after else "running"), (on or {}).get(n, "ok")
        rows["step", n] = Step(status, len(after), condition, tuple(after), behind, UNDO if undo else None, job_id)
        if job_id is not None:
            rows |= {("job", job_id): Job(step=n), ("stripe", job_id): Stripe(), ("part", job_id, 0): held()}
    rows["flow",] = Flow(running=sum(not after for after in steps), fail_fast=fail_fast)
    return rows


def step(n: int) -> str:
    return identity.step_id(FLOW, n)


def after_that(rows: dict[Key, Any], op: Op) -> dict[Key, Any]:
    """The rows after this transaction."""
    rows, factory = dict(rows), op.factory(())
    assert factory is not None
    alone(rows, factory, frozenset(), rules=GraphRules)
    assert violations(rows) == []
    return rows


def hold(rows: dict[Key, Any], job_id: str) -> dict[Key, Any]:
    """The part of the job is claimed."""
    part = rows["part", job_id, 0]
    return {**rows, ("part", job_id, 0): part._replace(status="running", ready=False, attempt=1, claim="a")}


CHAIN = [(), (0,), (1,)]
HALF = hold(after_that(flow_of(CHAIN), said(step(0))), step(1))
"""A chain of which the first step is done, and the second one runs."""
FAILED = after_that(flow_of(CHAIN, undo=False), said(step(0), "fail"))
UNDOING = hold(after_that(HALF, said(step(1), "fail")), identity.undo_id(FLOW, 0))
"""The second step has failed, and the first one is being undone."""
UNDO_FAILED = after_that(UNDOING, said(identity.undo_id(FLOW, 0), "fail"))


def by_a_person() -> dict[Key, Any]:
    """The third step has failed, a person undoes the second one, and the first one waits for that."""
    rows = after_that(HALF, said(step(1)))
    rows["step", 1] = rows["step", 1]._replace(undo='{"manual":"call them"}')
    return after_that(hold(rows, step(2)), said(step(2), "fail"))


BY_A_PERSON = by_a_person()
TWO_WAIT = {
    **UNDO_FAILED,
    ("step", 1): UNDO_FAILED["step", 1]._replace(status="manual", undo='{"manual":"call them"}'),
}
"""Both steps of a chain wait for a person, as an older version has left them, in which such a step held up nothing."""


def failed_behind(*, held_on: bool = False) -> dict[Key, Any]:
    """The second run of a flow: its first step runs, and two wait for it that had failed behind its failure.

    ``held_on``: one of them was stopped, and somebody still holds its part.
    """
    rows = hold(
        after_that(flow_of([(), (0,), (0,)], on={1: "any", 2: "failed"}, undo=False), said(step(0), "fail")), step(1)
    )
    rows = after_that(hold(rows, step(2)), said(step(2), "fail"))
    if held_on:
        rows = after_that(after_that(rows, STOP), cancel(step(1)))
    else:
        rows = after_that(rows, said(step(1), "fail"))
    return rows


ALL_FAILED = failed_behind()
BEHIND, HELD_ON = (hold(after_that(failed_behind(held_on=it), again()), step(0)) for it in (False, True))


# When nothing more goes wrong.


def calm(rows: dict[Key, Any], missing: frozenset[str]) -> str | None:
    """Workers finish what is left, upkeep tidies up, a person settles what waits for one. All must end."""
    settled = partial(alone, rows, missing=missing, rules=GraphRules)
    for turn in range(40):
        before = dict(rows)
        for key in sorted(key for key in rows if key[0] == "part"):
            _work(rows, key, turn, settled)
        for key in sorted(key for key in rows if key[0] == "stripe"):
            if rows[key].closed and rows[key].left:
                settled(partial(close.sweep, 0, key[1], 0))
        for key in sorted(
            key for key in rows if key[0] == "part" and rows[key].nested and rows[key].status not in LIVE
        ):
            for low in sorted(k[1] for k in rows if k[0] == "job" and rows[k].waiter == key[1:]):
                settled(partial(nest.abandon, 0, low, *key[1:]))
            settled(partial(nest.forget, 0, *key[1:]))
        for key in sorted(key for key in rows if key[0] == "effect"):
            _call(rows, key, turn, settled)
        if ("flow",) in rows:
            if rows["flow",].status == "ending":
                for key in sorted(key for key in rows if key[0] == "step" and rows[key].status == "running"):
                    settled(partial(close.cancel, 0, rows[key].job_id))
            if rows["flow",].status == "needs_attention":
                for key in sorted(
                    key for key in rows if key[0] == "step" and rows[key].status in ("undo_failed", "manual")
                ):
                    settled(partial(flow.resolve, 0, FLOW, f"s{key[1]}", "undone", BY_HAND))
        if wrong := violations(rows):
            return f"in the calm: {'; '.join(wrong)}"
        if rows == before:
            break
    stuck = [key[1][:8] for key in rows if key[0] == "job" and rows[key].status not in JOB_ENDED]
    if stuck:
        return f"l1: never ended: {stuck}"
    if ("flow",) in rows and rows["flow",].status in (*FLOW_LIVE, "needs_attention"):
        return f"l1: the flow never ends: {rows['flow',]}"
    return None


def _work(rows: dict[Key, Any], key: Key, turn: int, settled: Callable[..., Any]) -> None:
    if ("stripe", key[1]) not in rows:
        return  # its job was purged
    part, stripe = rows[key], rows["stripe", key[1]]
    if part.status == "pending" and part.ready and not stripe.closed:
        part = rows[key] = part._replace(status="running", ready=False, attempt=part.attempt + 1, claim=f"calm{turn}")
    if part.status != "running" or part.waiting or stripe.closed:
        return
    claim = claim_of(key[1], key[2], part)
    has_nested = ("job", identity.nested_id(claim.job_id, claim.idx)) in rows
    settled(nesting(claim) if has_nested else report(claim))
    if rows[key] == part:  # there is nothing to wait for: the part ends with what stands there
        settled(report(claim))


def _call(rows: dict[Key, Any], key: Key, turn: int, settled: Callable[..., Any]) -> None:
    """A relay calls what is to be called, and a person says what has become of the rest."""
    calls = settled(partial(effect.take, 0, key[3], 1, f"calm{turn}", "r", 60.0))
    if calls:
        settled(partial(effect.settle, 0, [Said(calls[0], "mark")]))
    settled(partial(effect.expire, 0))
    if rows[key].status == "unknown":
        settled(partial(effect.by_hand, 0, key[1:], True, None, None))


GRAPH = World(GraphRules, violations, history, calm)


def scenario(title: str, rows: dict[Key, Any], *scripts: Sequence[Op], crashes: int = 0) -> Scenario:
    return Scenario(title, rows, scripts, crashes, world=GRAPH)


NESTED = [
    scenario("a nested job ends", waiting(), [said(LOW)], [said(LOW)], crashes=2),
    scenario("a nested job fails and its part too", waiting(), [said(LOW, "fail")], crashes=1),
    scenario("two nested jobs end", waiting(2, 2), [said(LOW)], [said(LOW2)], crashes=1),
    scenario(
        "two nested jobs end, one fails fast", waiting(2, 2, '{"fail_fast":true}'), [said(LOW, "fail")], [said(LOW2)]
    ),
    scenario("a nested job ends beside the last other part", waiting(2), [said(LOW)], [said(TOP, idx=1, claim="b")]),
    scenario(
        "a nested job ends and the job above is cancelled", waiting(), [said(LOW)], [cancel(TOP), sweep(TOP)], crashes=1
    ),
    scenario("the nested job is cancelled", waiting(), [said(LOW)], [cancel(LOW)]),
    scenario("its end, the cancel above and the give-up above", waiting(), [said(LOW)], [cancel(TOP)], [give_up(TOP)]),
    scenario("its end and the cancels of both", waiting(), [said(LOW)], [cancel(TOP), sweep(TOP)], [cancel(LOW)]),
    scenario("its end and the skip of the part", waiting(), [said(LOW)], [skipped()]),
    scenario("a late report of the part that waits", waiting(), [said(LOW)], [said(TOP)]),
    scenario("a late release of the part that waits", waiting(), [said(LOW)], [said(TOP, "release")]),
    scenario("its end and a redrive above", waiting(), [said(LOW)], [cancel(TOP), sweep(TOP), redriven(TOP)]),
    scenario(
        "its part begins to wait while it ends",
        run_again_above(),
        [said(LOW)],
        [nested(claim="b", attempt=2)],
        crashes=1,
    ),
    scenario(
        "its part begins to wait while it is cancelled",
        run_again_above(),
        [cancel(LOW)],
        [nested(claim="b", attempt=2)],
    ),
    scenario(
        "a zombie nests again beside its successor",
        run_again_above(),
        [nested()],
        [nested(claim="b", attempt=2)],
        [said(LOW)],
    ),
    scenario(
        "its part begins to wait beside a batch of both",
        run_again_above(),
        [nested(claim="b", attempt=2)],
        [both("release")],
    ),
    scenario("left behind, and its part is run again", left_behind(), [abandon(LOW)], [redriven(TOP)], [said(LOW)]),
    scenario("left behind, and it ends", left_behind(), [abandon(LOW)], [said(LOW)], crashes=1),
]

FLOWS = [
    scenario("the two last steps before one", flow_of([(), (), (0, 1)]), [said(step(0))], [said(step(1))], crashes=1),
    scenario("a step ends and the flow is stopped", flow_of(CHAIN), [said(step(0))], [STOP], crashes=1),
    scenario("the last step ends and the flow is stopped", flow_of([()]), [said(step(0))], [STOP]),
    scenario("a step fails and the flow is stopped", HALF, [said(step(1), "fail")], [STOP], crashes=1),
    scenario("a step is cancelled by the stop while it ends", HALF, [said(step(1))], [STOP, cancel(step(1))]),
    scenario(
        "a sibling fails fast while a step ends",
        flow_of([(), (), (1,)]),
        [said(step(0), "fail")],
        [said(step(1))],
        crashes=1,
    ),
    scenario(
        "a sibling fails while its branch runs on",
        flow_of([(), (), (1,)], fail_fast=False),
        [said(step(0), "fail")],
        [said(step(1))],
    ),
    scenario("both fail", flow_of([(), (), (0, 1)]), [said(step(0), "fail")], [said(step(1), "fail")]),
    scenario(
        "one fails and is provided for",
        flow_of([(), (), (0, 1)], on={2: "failed"}),
        [said(step(0), "fail")],
        [said(step(1))],
    ),
    scenario(
        "an undo ends twice", UNDOING, [said(identity.undo_id(FLOW, 0))], [said(identity.undo_id(FLOW, 0))], crashes=2
    ),
    scenario("an undo fails", UNDOING, [said(identity.undo_id(FLOW, 0), "fail")], [STOP], crashes=1),
    scenario("resolved and undone again", UNDO_FAILED, [resolve(0)], [undo_again(0)]),
    scenario(
        "resolved by two, before others", BY_A_PERSON, [resolve(1)], [resolve(1, "nothing_to_undo")], [undo_again(1)]
    ),
    scenario("one of two that wait for a person is resolved and undone again", TWO_WAIT, [resolve(0)], [undo_again(0)]),
    scenario(
        "one of two that wait for a person is resolved by two", TWO_WAIT, [resolve(1)], [resolve(1, "nothing_to_undo")]
    ),
    scenario("resolved by two", UNDO_FAILED, [resolve(0)], [resolve(0)]),
    scenario("run again by two", FAILED, [again()], [again()], crashes=1),
    scenario("run again by two, with others behind", ALL_FAILED, [again()], [again()], crashes=1),
    scenario("run again with others behind, and stopped", ALL_FAILED, [again()], [STOP], [STOP]),
    scenario(
        "the end of a step before others that wait again, and the stop", BEHIND, [said(step(0))], [STOP, again(2)]
    ),
    scenario(
        "a step before others that wait again fails, and the stop", BEHIND, [said(step(0), "fail")], [STOP, again(2)]
    ),
    scenario(
        "the end of a step before one that is still held", HELD_ON, [said(step(0))], [said(step(1))], [sweep(step(1))]
    ),
    scenario("run again, late", FAILED, [again()], [again(), STOP]),
    scenario("run again and stopped", FAILED, [again()], [STOP], [STOP]),
    scenario(
        "stopped with a part that still runs", flow_of([()]), [STOP, cancel(step(0)), sweep(step(0))], [said(step(0))]
    ),
]
