"""Every order in which the statements of several transactions can meet, on a real PostgreSQL.

A schedule is a string of actors' names, one letter per step: ``AABBA`` lets A make two steps, then B two, then A one.
A step is one statement, or the COMMIT. An actor that waits for a lock takes no step until it is let go; then it goes on
by itself, as it would in life. The explorer starts each schedule from the same rows. It runs every one, the first time
without switching, then with the switches moved one by one; or, where there are too many, some drawn by seeds.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fanin.stores.postgres import PostgresStore
from fanin.testing.priorities import Priorities
from fanin.testing.stepper import COMMIT, PATIENCE_SECONDS, ROLLBACK, Script, Session, Watcher


class Actor(NamedTuple):
    """One of the parties of a race: a letter, and what it does each time."""

    name: str
    script: Callable[[], Script]


class Diverged(Exception):
    """A schedule cannot be followed: the actor that is due waits for a lock, or has ended."""


@dataclass
class Run:
    """One schedule as it was run.

    ``outcomes`` holds each actor's outcome by name. ``steps`` tells it for people. ``problems`` is what the judge said.
    ``seed`` is the one that the schedule was drawn by, if it was.
    """

    schedule: str = ""
    seed: int | None = None
    outcomes: dict[str, Any] = field(default_factory=dict)
    steps: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    retried: list[str] = field(default_factory=list)
    choices: list[str] = field(default_factory=list)
    """The actors that could have moved at each step, as a string of their names."""

    @property
    def deadlocks(self) -> int:
        return self.retried.count("40P01")

    def story(self) -> str:
        title = f"schedule {self.schedule}" + ("" if self.seed is None else f", seed {self.seed}")
        return "\n".join([title, *self.steps, *(f"  !! {p}" for p in self.problems)])


Chooser = Callable[[str, str], str]
"""Who moves next: given the schedule so far and the names of those that can move, one of these names."""

Judge = Callable[[Run], list[str]]


class Explorer:
    """Runs the schedules of some actors.

    ``reset`` puts the database back to where every schedule starts. ``judge``, if given, is asked after every COMMIT
    while the others may be in the middle of theirs, and says what it found wrong.
    """

    def __init__(
        self,
        store: PostgresStore,
        actors: Sequence[Actor],
        reset: Callable[[], None],
        judge: Judge | None = None,
    ) -> None:
        self._actors = list(actors)
        self._reset = reset
        self._judge = judge
        self._watcher = Watcher(store)
        self._sessions = [Session(store, actor.name, self._watcher) for actor in actors]

    def __enter__(self) -> Explorer:
        return self

    def __exit__(self, *_: object) -> None:
        for session in self._sessions:
            session.close()
        self._watcher.close()

    def every(self, preemptions: int | None = None) -> Iterator[Run]:
        """Every schedule; or those in which at most so many actors are interrupted although they could go on."""
        path: list[_Branch] = []
        while True:
            run = self.replay("".join(branch.chosen for branch in path))
            for depth in range(len(path), len(run.schedule)):
                path.append(_Branch.at(run, depth, preemptions))
            yield run
            while path and not path[-1].untried:
                path.pop()
            if not path:
                return
            path[-1].chosen = path[-1].untried.pop(0)

    def drawn(self, seeds: Iterable[int], depth: int = 3) -> Iterator[Run]:
        """A schedule for each seed, by random `Priorities`: for more actors than can be put into every order.

        ``depth``: how many steps must fall in one order for the mistake to show. A seed gives the same schedule again;
        only where three wait for one row at once is it the server that says who is next.
        """
        names, steps = "".join(actor.name for actor in self._actors), len(self.replay("").schedule)
        for seed in seeds:
            yield self._run(Priorities(seed, names, steps, depth), seed)

    def replay(self, schedule: str) -> Run:
        """Run one schedule again; after its end nobody is interrupted. Raises `Diverged` if it cannot be followed."""
        return self._run(lambda made, ready: _follow(schedule, made, ready))

    def _run(self, choose: Chooser, seed: int | None = None) -> Run:
        run = Run(seed=seed)
        self._reset()
        for actor, session in zip(self._actors, self._sessions, strict=True):
            session.play(actor.script())
        while not all(session.done for session in self._sessions):
            able = [session for session in self._sessions if session.ready]
            ready = "".join(session.name for session in [s for s in able if not s.pausing] or able)
            if ready:
                run.choices.append(ready)
                self._move(run, choose(run.schedule, ready))
            else:
                self._resolve(run)
        for session in self._sessions:
            run.outcomes[session.name] = session.outcome
            run.retried += session.retried
        return run

    def _move(self, run: Run, name: str) -> None:
        session = next(session for session in self._sessions if session.name == name)
        run.schedule += name
        label = str(session.next)
        ended = session.step(self._peers(session))
        run.steps.append(f"  {session.name} {label}" + ("" if ended else "  waits"))
        if ended:
            if label in (COMMIT, ROLLBACK):
                for other in self._sessions:
                    other.pausing = False
            self._wake(run)
            self._ask(run, label)

    def _wake(self, run: Run) -> None:
        """Let those that waited come to the end of their statement, or to the next lock."""
        moved = True
        while moved:
            moved = False
            for session in self._sessions:
                if session.waiting and session.settle(self._peers(session), patience=0.0):
                    run.steps.append(f"  {session.name} goes on")
                    moved = True

    def _resolve(self, run: Run) -> None:
        """Everybody waits for somebody: the server will end one of the transactions as a deadlock."""
        run.steps.append("  all wait: a deadlock")
        waiting = [session for session in self._sessions if session.waiting]
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not any(session.settle(self._peers(session)) for session in waiting):
            if time.monotonic() > deadline:
                raise TimeoutError("all sessions wait, and the server ends none of them:\n" + run.story())
        self._wake(run)

    def _ask(self, run: Run, label: str) -> None:
        if label == COMMIT and self._judge is not None:
            run.problems += [problem for problem in self._judge(run) if problem not in run.problems]

    def _peers(self, session: Session) -> list[int]:
        return [other.pid for other in self._sessions if other is not session]


class _Branch:
    """One step of the path through the tree of schedules: who moves, and who has not been tried here."""

    def __init__(self, chosen: str, untried: list[str]) -> None:
        self.chosen = chosen
        self.untried = untried

    @classmethod
    def at(cls, run: Run, depth: int, preemptions: int | None) -> _Branch:
        """The branch at a step that was chosen by default: it interrupts nobody, every other choice may."""
        chosen = run.schedule[depth]
        others = run.choices[depth].replace(chosen, "")
        interrupts = depth > 0 and chosen == run.schedule[depth - 1]
        if preemptions is not None and interrupts and _interruptions(run, depth) >= preemptions:
            others = ""
        return cls(chosen, list(others))


def _interruptions(run: Run, depth: int) -> int:
    """How often, before this step, an actor was left that could have gone on."""
    pairs = zip(run.schedule, run.schedule[1:depth], run.choices[1:depth], strict=False)
    return sum(1 for last, now, could in pairs if now != last and last in could)


def _follow(schedule: str, made: str, ready: str) -> str:
    """The actor that the schedule names; after it, the one that moved last as long as it can, then the first."""
    if len(made) < len(schedule):
        due = schedule[len(made)]
        if due not in ready:
            raise Diverged(f"step {len(made)} of {schedule} is {due}'s, but only {', '.join(ready)} can move")
        return due
    return made[-1] if made and made[-1] in ready else ready[0]


class Tally:
    """What a set of schedules came to: how many, how often each outcome, what was wrong."""

    def __init__(self, label: Callable[[Run], str]) -> None:
        self._label = label
        self.schedules = 0
        self.outcomes: Counter[str] = Counter()
        self.deadlocks = 0
        self.retried: Counter[str] = Counter()
        self.waits = 0
        self.broken: list[Run] = []

    def add(self, run: Run) -> None:
        self.schedules += 1
        self.outcomes[self._label(run)] += 1
        self.deadlocks += run.deadlocks
        self.retried.update(run.retried)
        self.waits += sum(step.endswith("waits") for step in run.steps)
        if run.problems:
            self.broken.append(run)

    def facts(self) -> dict[str, int]:
        """The figures by name."""
        return {
            "schedules": self.schedules,
            "violations": len(self.broken),
            "deadlocks": self.deadlocks,
            "lock_waits": self.waits,
        }

    def report(self, title: str) -> str:
        lines = [
            f"{title}: {self.schedules} schedules, {self.waits} lock waits, {self.deadlocks} deadlocks, "
            f"{len(self.broken)} broken"
        ]
        lines += [f"    {count:5}  {outcome}" for outcome, count in self.outcomes.most_common()]
        return "\n".join(lines)
