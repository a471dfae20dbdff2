"""Every order of several actors' statements, commits, crashes and repetitions in the small world."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from fanin.domain.errors import KeyConflict, LeaseLost, NotAllowedNow, UnknownJob
from fanin.domain.model import Claim, Report, Settled
from fanin.protocol import close, finish, lease, redrive
from fanin.protocol.effect import Begun, Call
from fanin.protocol.exchange import Exchanged, exchange
from fanin.protocol.steps import Again, Apart, Rows, Txn, TxnFactory
from tests.model.world import (
    ALLOWED,
    ATTEMPT,
    CLAIM,
    JOB,
    LEFT,
    P_STATUS,
    RESULT,
    STATUS,
    Blocked,
    Broken,
    Busy,
    Key,
    Row,
    Rules,
    View,
    violations,
    written,
)

Memory = tuple[Any, ...]


class Op(NamedTuple):
    """One transaction of an actor's script. ``due``: the part whose time is over while it runs."""

    name: str
    factory: Callable[[Memory], TxnFactory[Any] | None]
    due: int | None = None


class Actor(NamedTuple):
    """Where an actor stands: its next transaction, what the earlier ones returned, and the one under way."""

    op: int = 0
    memory: Memory = ()
    tries: tuple[tuple[Rows, ...], ...] = ((),)
    writes: frozenset[tuple[Key, Row]] = frozenset()
    locks: frozenset[Key] = frozenset()

    @property
    def begun(self) -> bool:
        return self.tries != ((),)


class State(NamedTuple):
    rows: frozenset[tuple[Key, Row]]
    actors: tuple[Actor, ...]
    crashes: int


class Found(NamedTuple):
    """``trace`` leads to the first violation; empty when there is none. A deadlock is one too."""

    states: int
    steps: int
    trace: list[str]
    problem: str | None
    verdicts: frozenset[str]


class World(NamedTuple):
    """What statements do, what must hold of the rows, and of two states side by side, and how all comes to rest."""

    rules: Callable[[frozenset[str], int | None], Any]
    violations: Callable[[dict[Key, Row]], list[str]]
    history: Callable[[dict[Key, Row], dict[Key, Row]], Iterator[str]]
    calm: Callable[[dict[Key, Row], frozenset[str]], str | None]


class Scenario(NamedTuple):
    title: str
    rows: dict[Key, Row]
    scripts: Sequence[Sequence[Op]]
    crashes: int = 0
    attempts: int = 2
    world: World | None = None
    """None: one job."""


# The transactions that actors are made of.


def claim(name: str) -> Op:
    return Op("claim", lambda _: lambda: lease.claim(0, "q", {"t": 60.0}, 1, name, "w"))


def settle(verb: str = "succeed", at: int = 0) -> Op:
    """Report on what the claim at place ``at`` of the memory returned."""

    def factory(memory: Memory) -> TxnFactory[Any] | None:
        claims: list[Claim] = memory[at]
        if not claims:
            return None
        reports = [Report(c, verb, f'"{c.claim_id}"' if verb == "succeed" else None) for c in claims]
        return lambda: finish.settle(0, reports, "w")

    return Op(verb, factory)


def exchanged(at: int = 0) -> Op:
    """Report success as a worker does, which expects to be heard. Nothing more is claimed."""

    def factory(memory: Memory) -> TxnFactory[Any] | None:
        claims: list[Claim] = memory[at]
        if not claims:
            return None
        reports = [Report(c, "succeed", f'"{c.claim_id}"') for c in claims]
        return lambda: _answers(exchange(0, reports, ["q"], {"t": 60.0}, 0, "x", "w"))

    return Op("exchange", factory)


def _answers(txn: Txn[Exchanged]) -> Txn[list[Settled]]:
    try:
        return (yield from txn)[0]
    except Again as again:
        replacement = again.factory
        raise Again(lambda: _answers(replacement())) from None


def renew(at: int = 0) -> Op:
    def factory(memory: Memory) -> TxnFactory[Any] | None:
        return (lambda: lease.renew(0, [(c, 60.0) for c in memory[at]])) if memory[at] else None

    return Op("renew", factory)


def wake(idx: int) -> Op:
    return Op(f"wake {idx}", lambda _: lambda: lease.wake(0), idx)


def reap(idx: int) -> Op:
    return Op(f"reap {idx}", lambda _: lambda: lease.reap(0), idx)


CANCEL = Op("cancel", lambda _: lambda: close.cancel(0, JOB))
GIVE_UP = Op("give up", lambda _: lambda: close.give_up(0, JOB))


def sweep(stripe: int) -> Op:
    return Op(f"sweep {stripe}", lambda _: lambda: close.sweep(0, JOB, stripe))


def redriven(run: int = 1, attempts: int = 2) -> Op:
    return Op("redrive", lambda _: lambda: redrive.redrive(0, JOB, run, attempts))


# The search.


def explore(scenario: Scenario, missing: frozenset[str] = frozenset(), limit: int = 400_000) -> Found:
    """Depth first over all states, each once. Stops at the first violation, or raises past ``limit`` states."""
    start = State(frozenset(scenario.rows.items()), tuple(Actor() for _ in scenario.scripts), scenario.crashes)
    seen = {start}
    stack: list[tuple[State, Iterator[tuple[str, State, str | None]]]] = [(start, _moves(scenario, start, missing))]
    path: list[str] = []
    steps = 0
    verdicts: set[str] = set()
    while stack:
        _, moves = stack[-1]
        move = next(moves, None)
        if move is None:
            stack.pop()
            if path:
                path.pop()
            continue
        label, after, problem = move
        steps += 1
        verdicts.update(word for word in label.split() if word.isupper())
        if label == "deadlock":
            return Found(len(seen), steps, [*path, label], "deadlock", frozenset(verdicts))
        if problem is not None:
            return Found(len(seen), steps, [*path, label], problem, frozenset(verdicts))
        if after in seen:
            continue
        seen.add(after)
        if len(seen) > limit:
            raise AssertionError(f"{scenario.title}: more than {limit} states")
        path.append(label)
        stack.append((after, _moves(scenario, after, missing)))
    return Found(len(seen), steps, [], None, frozenset(verdicts))


def _moves(scenario: Scenario, state: State, missing: frozenset[str]) -> Iterator[tuple[str, State, str | None]]:
    """What can happen next, with the violation that it shows, if any."""
    waiting, able = 0, 0
    for number, actor in enumerate(state.actors):
        script = scenario.scripts[number]
        if actor.op >= len(script):
            continue
        try:
            label, after, problem = _step(_world(scenario), state, number, script[actor.op], missing)
        except Blocked:
            waiting += 1
        else:
            able += 1
            yield f"{number}: {label}", after, problem
        if state.crashes and actor.begun:
            dead = Actor(len(script), actor.memory)
            again = Actor(actor.op, actor.memory)
            for name, other in (("dies", dead), ("is cut off and says it again", again)):
                yield f"{number}: {name}", _with(state, number, other, state.rows, state.crashes - 1), None
    if waiting and not able:
        yield "deadlock", state, None
    if not waiting and not able:
        yield "calm", state, _world(scenario).calm(dict(state.rows), missing)


def _step(world: World, state: State, number: int, op: Op, missing: frozenset[str]) -> tuple[str, State, str | None]:
    """One statement of an actor, or its commit."""
    actor = state.actors[number]
    factory = op.factory(actor.memory)
    if factory is None:
        return f"{op.name}: nothing", _with(state, number, Actor(actor.op + 1, (*actor.memory, None)), state.rows), None
    for results in actor.tries[:-1]:
        factory = _replacement(factory, results)
    txn = factory()
    results = actor.tries[-1]
    try:
        statement = next(txn)
        for rows in results:
            statement = txn.send(rows)
    except StopIteration as stop:
        return _commit(world, state, number, op, stop.value)
    except Again:
        return f"{op.name}: again", _with(state, number, _fresh(actor, (*actor.tries, ())), state.rows), None
    except (NotAllowedNow, LeaseLost, KeyConflict, UnknownJob, Apart):
        done = Actor(actor.op + 1, (*actor.memory, "refused"))
        return f"{op.name}: refused", _with(state, number, done, state.rows), None
    except (AssertionError, ValueError) as problem:
        return f"{op.name}: assertion", state, f"assertion in {op.name}: {problem}"
    finally:
        txn.close()
    committed = dict(state.rows)
    others = {key for n, other in enumerate(state.actors) if n != number for key in other.locks}
    view = View(committed, dict(actor.writes), set(actor.locks), others)
    try:
        rows = world.rules(missing, op.due).do(statement, view)
    except Busy:  # somebody else has locked what must not be waited for: all of it is said again, after a pause
        if not actor.begun:
            raise Blocked from None
        return f"{op.name}: busy", _with(state, number, _fresh(actor, ((),)), state.rows), None
    except Broken as problem:
        return f"{op.name}: {statement.query.name} aborts", state, f"constraint in {op.name}: {problem}"
    moved = Actor(
        actor.op, actor.memory, (*actor.tries[:-1], (*results, _frozen(rows))), frozenset(view.writes.items()),
        frozenset(view.locks),
    )  # fmt: skip
    return f"{op.name}: {statement.query.name}", _with(state, number, moved, state.rows), None


def _commit(world: World, state: State, number: int, op: Op, value: Any) -> tuple[str, State, str | None]:
    actor = state.actors[number]
    before = dict(state.rows)
    after = written(before, dict(actor.writes))
    rows = frozenset(after.items())
    moved = _with(state, number, Actor(actor.op + 1, (*actor.memory, _kept(value))), rows)
    problems = [*world.violations(after), *world.history(before, after)]
    verdicts = " ".join(s.verdict.name for s in value) if op.name in ("succeed", "fail", "retry", "release") else ""
    return f"{op.name}: commit {verdicts}", moved, "; ".join(problems) or None


def _history(before: dict[Key, Row], after: dict[Key, Row]) -> Iterator[str]:
    """What only two states side by side can show."""
    for key, row in after.items():
        old = before.get(key)
        if key[0] != "part" or old is None or old == row:
            continue
        if old[P_STATUS] == "succeeded":
            yield f"p2: the result of part {key[1]} changed"
        if row[ATTEMPT] < old[ATTEMPT]:
            yield f"f4: the attempt of part {key[1]} fell"
        if row[RESULT] is not None and row[RESULT] != f'"{row[CLAIM]}"':
            yield f"f1: part {key[1]} has the result of another claim"
        if (
            row[P_STATUS] == "running"
            and old[P_STATUS] == "running"
            and row[ATTEMPT] == old[ATTEMPT]
            and row[CLAIM] != old[CLAIM]
        ):
            yield f"f2: part {key[1]} changed hands without a new attempt"


def calm(rows: dict[Key, Row], missing: frozenset[str]) -> str | None:
    """No more faults: healthy workers finish what is left. The job must end, and everything must add up."""
    for turn in range(30):
        progress = False
        for idx in sorted(key[1] for key in rows if key[0] == "part"):
            progress |= bool(alone(rows, lambda: lease.wake(0), missing, idx))
            progress |= bool(alone(rows, lambda: lease.reap(0), missing, idx))
        claims = alone(rows, lambda turn=turn: lease.claim(0, "q", {"t": 60.0}, 1, f"calm{turn}", "w"), missing)  # type: ignore[misc]
        if claims:
            progress = True
            reports = [Report(c, "succeed", f'"{c.claim_id}"') for c in claims]
            alone(rows, lambda reports=reports: finish.settle(0, reports, "w"), missing)  # type: ignore[misc]
        for stripe in sorted(key[1] for key in rows if key[0] == "stripe"):
            if rows["stripe", stripe][LEFT]:
                progress |= bool(alone(rows, lambda stripe=stripe: close.sweep(0, JOB, stripe), missing))  # type: ignore[misc]
        if wrong := violations(rows):
            return f"in the calm: {'; '.join(wrong)}"
        if not progress:
            break
    if rows["job",][STATUS] not in ("completed", "failed", "cancelled"):
        stuck = {key[1]: (row[P_STATUS], row[ATTEMPT], row[ALLOWED]) for key, row in rows.items() if key[0] == "part"}
        return f"l1: the job never ends: {stuck}"
    return None


def _world(scenario: Scenario) -> World:
    return scenario.world or World(Rules, violations, _history, calm)


def alone(
    rows: dict[Key, Row], factory: TxnFactory[Any], missing: frozenset[str], due: int | None = None, rules: Any = Rules
) -> Any:
    """Run one transaction with nobody else about, and commit it."""
    while True:
        view = View(dict(rows), {}, set(), set())
        txn = factory()
        try:
            statement = next(txn)
            while True:
                statement = txn.send(rules(missing, due).do(statement, view))
        except StopIteration as stop:
            after = written(rows, view.writes)
            rows.clear()
            rows.update(after)
            return stop.value
        except Again as again:
            factory = again.factory
        except (Broken, AssertionError, ValueError, NotAllowedNow):
            return None


def _replacement(factory: TxnFactory[Any], results: tuple[Rows, ...]) -> TxnFactory[Any]:
    txn = factory()
    try:
        next(txn)
        for rows in results:
            txn.send(rows)
    except Again as again:
        return again.factory
    raise AssertionError("the transaction was not replaced when it was run again")


def _fresh(actor: Actor, tries: tuple[tuple[Rows, ...], ...]) -> Actor:
    return Actor(actor.op, actor.memory, tries)


def _with(
    state: State, number: int, actor: Actor, rows: frozenset[tuple[Key, Row]], crashes: int | None = None
) -> State:
    actors = (*state.actors[:number], actor, *state.actors[number + 1 :])
    return State(rows, actors, state.crashes if crashes is None else crashes)


def _frozen(rows: Rows) -> Any:
    return tuple(rows)


def _kept(value: Any) -> Any:
    """What an actor remembers: claims and calls; anything else says nothing that its next step needs."""
    if isinstance(value, Begun):
        return () if value.call is None else (value.call,)
    return tuple(value) if isinstance(value, list) and all(isinstance(v, (Claim, Call)) for v in value) else None
