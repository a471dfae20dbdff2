"""Exhaustive within small bounds: 1 job, 1 to 3 parts, 1 or 2 stripes, up to 4 actors, up to 2 crashes; a job whose
parts wait for nested jobs, or add parts to it; a job that is split, or too old to start; a flow of up to 3
steps, and its purge; an effect, its callers and its undo; a schedule.

Each scenario must be clean in every order, and each broken variant must be caught by one of them.
"""

from __future__ import annotations

import pytest

from tests.model.effect_scenarios import EFFECTS
from tests.model.explore import (
    CANCEL,
    GIVE_UP,
    Scenario,
    claim,
    exchanged,
    explore,
    reap,
    redriven,
    renew,
    settle,
    sweep,
    wake,
)
from tests.model.graph_scenarios import FLOWS, NESTED
from tests.model.growth_scenarios import GROWTH, SCHEDULES
from tests.model.purge_scenarios import PURGES
from tests.model.split_scenarios import AGES, SPLITS
from tests.model.world import Key, Row
from tests.support.figures import record


def world(
    parts: int = 2, stripes: int = 1, policy: str = "{}", attempts: int = 2, ended: bool = False, sealed: bool = True
) -> dict[Key, Row]:
    """One job. ``ended``: it has failed, every part for good."""
    rows: dict[Key, Row] = {}
    for idx in range(parts):
        fresh = ("pending", True, 0, attempts, None, idx % stripes, None)
        spent = ("failed", False, attempts, attempts, f"old{idx}", idx % stripes, None)
        rows["part", idx] = spent if ended else fresh
    for number in range(stripes):
        mine = sum(1 for idx in range(parts) if idx % stripes == number)
        rows["stripe", number] = (0, 0, mine, 0, sealed, False) if ended else (mine, 0, 0, 0, sealed, False)
    live = 0 if ended else sum(1 for number in range(stripes) if rows["stripe", number][0])
    rows["job",] = ("failed" if ended else "running", 1, live, policy, '{"task":"next"}')
    if ended:
        rows["event", f"job/{'0' * 8}-0000-0000-0000-{'0' * 11}1/finished/1", 0] = (1,)
    return rows


FAIL_FAST = '{"fail_fast":true}'
QUORUM = '{"quorum":1}'
ONE_OF_TWO = '{"tolerate":1,"fail_fast":true}'

SCENARIOS = [
    Scenario("two last parts at once", world(), [[claim("a"), settle()], [claim("b"), settle()]], crashes=2),
    Scenario("two stripes", world(2, 2), [[claim("a"), settle()], [claim("b"), settle()]], crashes=1),
    Scenario("three parts, two stripes", world(3, 2), [[claim(n), settle()] for n in "abc"]),
    Scenario("a report said twice", world(1), [[claim("a"), settle(), settle()], [wake(0), claim("b"), settle()]]),
    Scenario("a zombie succeeds", world(1), [[claim("a"), settle()], [wake(0), claim("b"), settle()]], crashes=1),
    Scenario("a zombie fails", world(1), [[claim("a"), settle("fail")], [wake(0), claim("b"), settle()]]),
    Scenario(
        "a zombie retries", world(1, attempts=3), [[claim("a"), settle("retry")], [wake(0), claim("b"), settle()]]
    ),
    Scenario("a zombie releases", world(1), [[claim("a"), settle("release")], [wake(0), claim("b"), settle()]]),
    Scenario("a heartbeat comes late", world(1), [[claim("a"), renew(), settle()], [wake(0), claim("b"), settle()]]),
    Scenario("a contradiction", world(1), [[claim("a"), settle(), settle("fail")], [wake(0), claim("b"), settle()]]),
    Scenario(
        "released twice", world(1), [[claim("a"), settle("release"), settle("release"), claim("c"), settle(at=3)]]
    ),
    Scenario(
        "retried to the end", world(1), [[claim("a"), settle("retry"), claim("b"), settle("retry", 2)]], crashes=1
    ),
    Scenario(
        "a release costs nothing", world(1, attempts=1), [[claim("a"), settle("release"), claim("b"), settle(at=2)]]
    ),
    Scenario("the last lease runs out", world(1, attempts=1), [[claim("a"), settle()], [reap(0)], [reap(0)]]),
    Scenario("the reaper meets a taker", world(1), [[claim("a"), wake(0), claim("b")], [reap(0)], [reap(0)]]),
    Scenario(
        "a late reaper",
        world(1, attempts=1),
        [[claim("a"), reap(0), redriven(attempts=1), claim("b")], [reap(0)]],
    ),
    Scenario("cancel", world(), [[claim("a"), settle()], [claim("b"), settle()], [CANCEL, sweep(0)]]),
    Scenario("cancel, two stripes", world(2, 2), [[claim("a"), settle()], [claim("b"), settle()], [CANCEL]], crashes=1),
    Scenario("give up and cancel", world(2, 2), [[claim("a"), settle()], [GIVE_UP], [CANCEL]], crashes=1),
    Scenario("fail fast", world(2, 1, FAIL_FAST), [[claim("a"), settle("fail")], [claim("b"), settle()], [sweep(0)]]),
    Scenario("fail fast twice", world(3, 2, FAIL_FAST), [[claim(n), settle("fail")] for n in "ab"] + [[CANCEL]]),
    Scenario("too many failures", world(3, 2, ONE_OF_TWO), [[claim(n), settle("fail")] for n in "abc"]),
    Scenario("quorum", world(2, 2, QUORUM), [[claim("a"), settle()], [claim("b"), settle()]], crashes=1),
    Scenario("no quorum", world(2, 2, QUORUM), [[claim("a"), settle("fail")], [claim("b"), settle("fail")]]),
    *(
        Scenario(f"{title}, expected", rows, scripts)
        for title, rows, scripts in [
            ("two last parts at once", world(), [[claim("a"), exchanged()], [claim("b"), exchanged()]]),
            ("three parts, two stripes", world(3, 2), [[claim(n), exchanged()] for n in "abc"]),
            ("a report said twice", world(1), [[claim("a"), exchanged(), exchanged()]]),
            ("a zombie succeeds", world(1), [[claim("a"), exchanged()], [wake(0), claim("b"), exchanged()]]),
            ("a zombie among others", world(3, 1), [[claim("a"), exchanged()], [wake(0), claim("b"), exchanged()]]),
            ("cancel", world(2, 2), [[claim("a"), exchanged()], [claim("b"), exchanged()], [CANCEL, sweep(0)]]),
            ("quorum", world(2, 2, QUORUM), [[claim("a"), exchanged()], [claim("b"), exchanged()]]),
            ("beside a failure", world(2, 2), [[claim("a"), exchanged()], [claim("b"), settle("fail")]]),
            ("redrive", world(1, attempts=1), [[claim("a"), settle("fail"), exchanged()], [redriven(), claim("b")]]),
        ]
    ),
    Scenario("sweep and redrive", world(), [[claim("a"), settle()], [CANCEL, sweep(0)], [redriven()]]),
    Scenario("redrive twice", world(2, 2, ended=True), [[redriven()], [redriven()]], crashes=1),
    Scenario(
        "redrive and old tokens",
        world(1, attempts=1),
        [[claim("a"), settle("fail"), settle()], [redriven(), claim("b")]],
    ),
    Scenario(
        "redrive against the last failure",
        world(),
        [[claim("a"), settle("fail")], [claim("b"), settle("fail")], [redriven()]],
    ),
    Scenario(
        "a closed job is redriven and ends", world(1), [[CANCEL, redriven(), claim("a"), settle(at=2)], [sweep(0)]]
    ),
]

GRAPHS = [*NESTED, *FLOWS, *GROWTH, *SCHEDULES, *SPLITS, *AGES, *PURGES, *EFFECTS]

BROKEN = [
    "settle.status", "settle.attempt+settle.claim", "settle.claim+redrive.attempt", "count.closed", "count.judged",
    "expected.closed", "expected.judged", "expected.left",
    "stripes.status+count.closed", "end.status+close.status", "judge.lock", "close.lock", "close.stripes",
    "close.status", "sweep.closed", "sweep.lock", "sweep.live", "reap.status", "reap.attempt", "wake.allowance",
    "redrive.status", "redrive.lock", "redrive.attempt", "redrive.allowance", "redrive.open", "redrive.run",
    "release.refund", "announce.unique+redrive.run",
]  # fmt: skip


@pytest.mark.parametrize("scenario", [*SCENARIOS, *GRAPHS], ids=lambda s: s.title.replace(" ", "-"))
def test_every_order_ends_right(scenario: Scenario) -> None:
    found = explore(scenario)
    record("model", scenarios=1, states=found.states, steps=found.steps, verdicts=sorted(found.verdicts))
    assert found.problem is None, "\n".join([*found.trace, found.problem])
    assert found.states > 10


BROKEN_GRAPH = [
    (NESTED, "rise.waiting rise.closed rise.let_go settle.waiting nest.lock nest.busy count.closed"),
    (FLOWS, "flow.lock stop.skip undo.last resolve.status undo_again.status tell.payload"),
    (GROWTH, "spawn.closed grow.width"),
    (SCHEDULES, "fire.lock+fire.seen fire.lock+fire.paused"),
    (SPLITS, "split.nested rise.waiting rise.let_go nest.lock"),
    (AGES, "age.lock age.unstarted age.once"),
    (PURGES, "purge.lock purge.flow purge.live purge.status+purge.flow"),
    (
        EFFECTS,
        "take.once call.once begin.closed mark.status cancel.doubt undo.cancel undo.hold undo.standing undo.took",
    ),
]


@pytest.mark.parametrize(
    ("scenarios", "guards"), [(scenarios, one) for scenarios, text in BROKEN_GRAPH for one in text.split()],
    ids=lambda one: one if isinstance(one, str) else one[0].title.replace(" ", "-"),
)  # fmt: skip
def test_a_graph_without_this_guard_is_caught(scenarios: list[Scenario], guards: str) -> None:
    for scenario in scenarios:
        found = explore(scenario, frozenset(guards.split("+")))
        if found.problem is not None:
            record("model", caught={f"without {guards}": f"{scenario.title}: {found.problem}"})
            return
    pytest.fail(f"no scenario notices that {guards} is gone")


@pytest.mark.parametrize("guards", BROKEN)
def test_a_protocol_without_this_guard_is_caught(guards: str) -> None:
    missing = frozenset(guards.split("+"))
    for scenario in SCENARIOS:
        found = explore(scenario, missing)
        if found.problem is not None:
            record("model", caught={f"without {guards}": f"{scenario.title}: {found.problem}"})
            return
    pytest.fail(f"no scenario notices that {guards} is gone")
