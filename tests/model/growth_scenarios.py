"""Who meets whom: parts that add parts to their job, and the slots of a schedule."""

from __future__ import annotations

from typing import Any

from fanin.domain.model import Claim, NewJob, Report
from fanin.protocol import finish, growth, schedule
from tests.model.explore import Op
from tests.model.graph_rows import Job, Stripe
from tests.model.graph_scenarios import TOP, cancel, held, said, scenario, sweep
from tests.model.world import Key


def spawner(idx: int, *keys: str, now: bool = False) -> Op:
    """The holder of a part adds parts: with its success, or at once."""
    mine = Claim(0, TOP, idx, "t", 1, "ab"[idx], 9, "1", None, False, 0)
    items = tuple((key, key) for key in keys)
    if now:
        return Op("spawn", lambda _: lambda: growth.spawn(mine, items))
    return Op(
        "spawner", lambda _: lambda: finish.settle(0, [Report(mine, "succeed", f'"{"ab"[idx]}"', spawns=items)], "w")
    )


def growing(parts: int = 2, policy: str = "{}") -> dict[Key, Any]:
    """A job of held parts that may grow."""
    rows: dict[Key, Any] = {("job", TOP): Job(policy=policy, width=9), ("stripe", TOP): Stripe(parts)}
    return rows | {("part", TOP, idx): held("ab"[idx]) for idx in range(parts)}


def fire(seen: float, at: float, by_hand: bool = False, overlap: str = "allow") -> Op:
    job_id = f"0e000000-0000-0000-0000-0000000000{int(at):02}"
    slot = schedule.Slot("nightly", at, seen, overlap=overlap, by_hand=by_hand)
    new = NewJob(id=job_id, bucket=0, task="t", queue="q", step="at/nightly")
    return Op("fire", lambda _: lambda: schedule.fire(0, slot, schedule.Prepared(new, 1, lambda: [["1"]])))


PAUSE = Op("pause", lambda _: lambda: schedule.pause(0, "nightly", None))


def scheduled(asked: float | None = None) -> dict[Key, Any]:
    return {("schedule",): (0.0, None, None, asked)}


A_THIRD = '{"tolerate_percent":33.4,"fail_fast":true}'

GROWTH = [
    scenario("the last part spawns", growing(1), [spawner(0, "x")], [spawner(0, "x")], crashes=1),
    scenario("two spawn the same", growing(), [spawner(0, "x", "y")], [spawner(1, "y", "x")], crashes=1),
    scenario("one spawns at once beside the last other", growing(), [spawner(0, "x", now=True), said(TOP)],
             [spawner(1, "x")], crashes=1),
    scenario("a failure of a share beside a spawner", growing(2, A_THIRD), [said(TOP, "fail")], [spawner(1, "x", "y")],
             crashes=1),
    scenario("a failure of a share beside a spawn at once", growing(2, A_THIRD), [said(TOP, "fail")],
             [spawner(1, "x", "y", now=True), said(TOP, idx=1, claim="b")]),
    scenario("a spawn and the cancel of its job", growing(1), [spawner(0, "x", now=True)], [cancel(TOP), sweep(TOP)]),
    scenario("a spawner and the cancel of its job", growing(1), [spawner(0, "x")], [cancel(TOP), sweep(TOP)]),
]  # fmt: skip

SCHEDULES = [
    scenario("two see one slot", scheduled(), [fire(0, 10)], [fire(0, 10)], crashes=2),
    scenario("one fires the next slot", scheduled(), [fire(0, 10), fire(10, 20)], [fire(0, 10)]),
    scenario("a slot and a pause", scheduled(), [fire(0, 10)], [PAUSE], crashes=1),
    scenario("a slot, by hand too", scheduled(30.0), [fire(0, 10)], [fire(0, 30, True)], [fire(0, 30, True)]),
    scenario("no two overlap", scheduled(), [fire(0, 10, overlap="skip")], [fire(0, 10), fire(10, 20, overlap="skip")]),
]
