"""Named places where a process can be made to stop, die or fail, in any process, and nothing at all when off.

    FANIN_CRASHPOINTS="complete.stripe=kill@3" python worker.py     # dies at its third count-down
    FANIN_CRASHPOINTS=@/tmp/points python worker.py                 # the same, from a file that may change meanwhile

A plan is a list of ``NAME=ACTION``, separated by commas or line ends. Actions: ``kill`` (SIGKILL to this process),
``freeze`` (SIGSTOP to this process; somebody must continue it), ``pause:SECONDS`` (this thread only; without seconds
until the entry leaves the file) and ``raise`` (`Crashed` is raised there). ``@3`` means the third time only, ``%0.1``
one time in ten. Without either it is every time.

The points are placed from outside: `install` wraps a store's transactions, see `fanin.testing.tap`.
"""

from __future__ import annotations

import os
import random
import re
import signal
import threading
import time
from typing import NamedTuple

from fanin.domain.errors import BadOption
from fanin.protocol.steps import Rows, Statement
from fanin.stores.base import Store
from fanin.testing.tap import Tap, label, tap, untap

VARIABLE = "FANIN_CRASHPOINTS"
LOG_VARIABLE = "FANIN_CRASHPOINTS_LOG"
ACTIONS = ("kill", "freeze", "pause", "raise")
POLL_SECONDS = 0.01


class Crashed(Exception):
    """Raised at a crash point whose action is ``raise``."""


class Point(NamedTuple):
    """``when``: ``begin`` (before BEGIN), ``after`` the statement, before the ``commit`` or after it (``committed``) of
    a transaction in which the statement has returned rows, or has run, if it returns none."""

    when: str
    statement: str
    sentence: str


POINTS = {
    "submit.job": Point("after", "submit.create_job", "a new job's row is written, its parts are not"),
    "submit.before_commit": Point("commit", "submit.create_job", "a new job is complete, COMMIT is not sent"),
    "submit.after_commit": Point("committed", "submit.create_job", "a new job is committed, its creator does not know"),
    "claim.taken": Point("after", "lease.claim_parts", "parts are claimed, not committed"),
    "claim.committed": Point("committed", "lease.claim_parts", "parts are claimed, their handlers have not begun"),
    "renew.committed": Point("committed", "lease.renew_parts", "leases are renewed, the worker does not know"),
    "work.done": Point("begin", "finish.settle_parts", "handlers are done, the database does not know"),
    "complete.part": Point("after", "finish.settle_parts", "the parts say what became of them, no counter does"),
    "complete.stripe": Point("after", "counting.count_down", "a stripe is counted down, the job is not"),
    "complete.job": Point("after", "ending.end_job", "the job says that it has ended, its event does not exist"),
    "complete.event": Point("after", "ending.announce", "the event is written, the successor is not"),
    "complete.successor": Point("after", "born.create_part", "the successor is written"),
    "complete.before_commit": Point("commit", "finish.settle_parts", "a batch is settled, COMMIT is not sent"),
    "complete.after_commit": Point("committed", "finish.settle_parts", "a batch is committed, its worker is not told"),
    "effect.registered": Point("after", "effect.register", "what accepted parts want done is written, not committed"),
    "effect.begun": Point("committed", "effect.call_now", "an attempt is about to call, it has not called"),
    "effect.taken": Point("committed", "effect.claim_effects", "a worker is about to call, it has not called"),
    "effect.called": Point("begin", "effect.settle_effects", "a call has been answered, the database does not know"),
    "effect.marked": Point(
        "committed", "effect.settle_effects", "the answer of a call is kept, its caller is not told"
    ),
    "reap.parts": Point("after", "finish.reap_parts", "parts of lost workers have failed, no counter says so"),
    "giveup.locked": Point("after", "close.standing", "a job that is to be closed is locked, still unchanged"),
    "giveup.before_commit": Point("commit", "close.standing", "a job is closed early, COMMIT is not sent"),
    "sweep.parts": Point("after", "close.sweep_parts", "left parts are abandoned, their counter does not say so"),
    "redrive.locked": Point("after", "redrive.standing", "a job to be redriven is locked, still unchanged"),
    "redrive.before_commit": Point("commit", "redrive.reopen_job", "a new run is open, COMMIT is not sent"),
    "relay.claimed": Point("committed", "outbox.claim_events", "events are claimed, none is sent"),
    "relay.published": Point("begin", "outbox.settle_events", "events are sent and applied, none is marked"),
    "relay.marked": Point("committed", "outbox.settle_events", "events are marked, the relay does not know"),
    "stage.row": Point("committed", "outputs.stage", "an output has a row and no object"),
    "stage.uploaded": Point("begin", "outputs.mark_ready", "an output's object is whole, its row does not say so"),
    "stage.ready": Point("committed", "outputs.mark_ready", "an output is ready, its part does not say that it counts"),
}
_ROWS_MATTER = {
    "effect.call_now",
    "effect.claim_effects",
    "outbox.claim_events",
    "outputs.stage",
    "outputs.mark_ready",
    "lease.claim_parts",
    "finish.settle_parts",
    "finish.reap_parts",
    "close.sweep_parts",
}
"""Statements that often find nothing; then nothing has happened at their points either."""


class Rule(NamedTuple):
    action: str
    seconds: float | None = None
    hit: int | None = None
    share: float | None = None


class Plan:
    """What shall happen where. Thread-safe; counts how often each point was passed."""

    def __init__(self, rules: dict[str, Rule] | None = None, *, seed: int | None = None) -> None:
        self.rules = dict(rules or {})
        self.passed: dict[str, int] = {}
        self.log: int | None = None
        self._path: str | None = None
        self._stamp: tuple[int, int] | None = None
        self._lock = threading.Lock()
        self._random = random.Random(seed)

    @classmethod
    def parse(cls, text: str, *, seed: int | None = None) -> Plan:
        """The plan that ``text`` describes. Raises `BadOption` for a name or action that does not exist."""
        return cls(_rules(text), seed=seed)

    @classmethod
    def from_file(cls, path: str) -> Plan:
        """A plan that follows its file; a file that is missing is an empty plan."""
        plan = cls()
        plan._path = path
        plan._reread()
        return plan

    @classmethod
    def from_environment(cls) -> Plan | None:
        """As ``FANIN_CRASHPOINTS`` says; None if it is not set."""
        text = os.environ.get(VARIABLE)
        log = os.environ.get(LOG_VARIABLE)
        if not text and not log:
            return None
        plan = cls.from_file(text[1:]) if text and text.startswith("@") else cls.parse(text or "")
        if log:
            plan.log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        return plan

    def hit(self, name: str) -> None:
        """The process is at the point ``name``: note it, and do what the plan says."""
        with self._lock:
            count = self.passed[name] = self.passed.get(name, 0) + 1
            self._reread()
            rule = self.rules.get(name)
            chosen = rule is not None and (rule.hit in (None, count)) and (
                rule.share is None or self._random.random() < rule.share
            )  # fmt: skip
        if self.log is not None:
            os.write(self.log, f"{name} {os.getpid()} {rule.action if rule and chosen else '-'}\n".encode())
        if rule is not None and chosen:
            self._act(name, rule)

    def _act(self, name: str, rule: Rule) -> None:
        if rule.action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif rule.action == "freeze":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif rule.action == "raise":
            raise Crashed(f"crash point {name}")
        elif rule.seconds is not None:
            time.sleep(rule.seconds)
        else:
            while self._standing(name):
                time.sleep(POLL_SECONDS)

    def _standing(self, name: str) -> bool:
        with self._lock:
            self._reread()
            return name in self.rules

    def remove(self, name: str) -> None:
        """Take a rule out of a plan in memory; whoever is paused there goes on."""
        with self._lock:
            self.rules.pop(name, None)

    def _reread(self) -> None:
        if self._path is None:
            return
        try:
            found = os.stat(self._path)
            stamp = (found.st_mtime_ns, found.st_ino)
            if stamp != self._stamp:
                with open(self._path, encoding="utf-8") as file:
                    self.rules = _rules(file.read())
                self._stamp = stamp
        except FileNotFoundError:
            self.rules, self._stamp = {}, None


def install(store: Store, plan: Plan | None = None) -> Plan | None:
    """Place the points in a store's transactions. Without a plan: as the environment says, or not at all.

    Returns the plan that holds, None if none does.
    """
    plan = plan or Plan.from_environment()
    if plan is not None:
        chosen = plan
        tap(store, lambda: _Points(chosen))
    return plan


def remove(store: Store) -> None:
    """Take the points (and every other tap) out of this store again."""
    untap(store)


def write_plan(path: str, text: str) -> None:
    """Replace a plan's file at once, for all processes that follow it. Raises `BadOption` for a wrong one."""
    _rules(text)
    fresh = f"{path}.{os.getpid()}.{threading.get_ident()}"
    with open(fresh, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(fresh, path)


class _Points(Tap):
    """The points of one call of `Store.run`."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._met: list[str] = []

    def begin(self, first: Statement) -> None:
        self._at("begin", label(first))

    def restarted(self) -> None:
        self._met = []

    def after(self, statement: Statement, rows: Rows) -> None:
        name = label(statement)
        if (rows or name not in _ROWS_MATTER) and name not in self._met:
            self._met.append(name)
        if rows or name not in _ROWS_MATTER:
            self._at("after", name)

    def commit(self) -> None:
        for name in self._met:
            self._at("commit", name)

    def committed(self) -> None:
        for name in self._met:
            self._at("committed", name)

    def _at(self, when: str, statement: str) -> None:
        for name in _PLACES.get((when, statement), ()):
            self._plan.hit(name)


_PLACES: dict[tuple[str, str], list[str]] = {}
for _name, _point in POINTS.items():
    _PLACES.setdefault((_point.when, _point.statement), []).append(_name)

_RULE = re.compile(
    r"(?P<name>[\w.]+)\s*=\s*(?P<action>\w+)(?::(?P<seconds>\d*\.?\d+))?(?:@(?P<hit>\d+))?(?:%(?P<share>\d*\.?\d+))?"
)


def _rules(text: str) -> dict[str, Rule]:
    found: dict[str, Rule] = {}
    for piece in re.split(r"[,\n]", text):
        piece = piece.partition("#")[0].strip()
        if not piece:
            continue
        match = _RULE.fullmatch(piece)
        if match is None:
            raise BadOption(f"crash point {piece!r}: write NAME=ACTION, NAME=ACTION@HIT or NAME=ACTION%SHARE")
        name, action = match["name"], match["action"]
        if name not in POINTS:
            raise BadOption(f"there is no crash point {name!r}; there are: {', '.join(POINTS)}")
        if action not in ACTIONS:
            raise BadOption(f"crash point {name}: {action!r} is no action; there are: {', '.join(ACTIONS)}")
        seconds, hit, share = match["seconds"], match["hit"], match["share"]
        found[name] = Rule(
            action,
            None if seconds is None else float(seconds),
            None if hit is None else int(hit),
            None if share is None else float(share),
        )
    return found
