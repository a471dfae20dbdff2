"""The effect loop of a worker: claim what accepted parts want done, call, say what became of it.

While a receiver is waited for no transaction is open. One loop, and a thread for each call; a handler that stalls keeps
its own places alone.
"""

from __future__ import annotations

import logging
import shlex
import threading
import time
from collections import Counter, deque
from functools import partial

from fanin.domain import identity, limits
from fanin.domain.errors import Unavailable
from fanin.protocol import effect
from fanin.protocol.effect import Key, Said
from fanin.protocol.steps import Txn
from fanin.runtime.asking import late_answer, tell_late
from fanin.runtime.effects import MARGIN_SECONDS, Answer, Handlers, UnderWay, too_late
from fanin.stores.base import Store

log = logging.getLogger("fanin")

POLL_SECONDS = 1.0
PAUSE_SECONDS = 2.0
STRAY_CALLS = 64
"""Threads whose calls are over their deadline and have not come back. With more of them nothing new is called."""


class Performer:
    """Calls the effects for which ``handlers`` are known, until it is closed. Several may run at once."""

    def __init__(self, store: Store, handlers: Handlers, name: str) -> None:
        self._store = store
        self._handlers = handlers
        self._name = name
        self._calls: set[UnderWay] = set()
        self._strays: set[UnderWay] = set()
        self._answers: deque[tuple[UnderWay, Answer]] = deque()
        self._unsaid: list[tuple[int, Said, bool]] = []
        """(bucket, what is to be stored, whether it is late)."""
        self._news = threading.Event()
        self._closing = threading.Event()
        self._expired = 0.0
        self._thread = threading.Thread(target=self._run, name="fanin-effects", daemon=True)
        self.done = 0
        self.refused = 0

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """There may be something to call. From any thread."""
        self._news.set()

    def close(self, grace: float) -> None:
        """Begin nothing more; calls under way may end within ``grace`` seconds, and their answers are stored."""
        self._closing.set()
        self._news.set()
        if self._thread.is_alive():
            self._thread.join(grace)
        if self._calls:
            log.warning(
                "worker %s: %d calls of effects have not come back; another worker takes them up, or a person has to",
                self._name, len(self._calls),
            )  # fmt: skip

    def idle(self) -> bool:
        """Whether nothing is being called and nothing could be, now. Raises `Unavailable`."""
        if self._calls or self._answers or self._unsaid:
            return False
        return not self._store.read(self._due) and not self._calls

    def _run(self) -> None:
        while not self._over():
            pause = POLL_SECONDS
            try:
                self._news.clear()
                self._collect()
                self._store_answers()
                if not self._closing.is_set():
                    self._expire()
                    if self._take():
                        pause = 0.0
            except Unavailable as problem:
                log.warning("worker %s: effects: %s; trying again", self._name, problem)
                pause = PAUSE_SECONDS
            except Exception:
                log.exception("worker %s: effects failed; trying again", self._name)
                pause = PAUSE_SECONDS
            if not self._over():  # the news that was cleared above may have been the last
                self._news.wait(self._patience(pause))

    def _over(self) -> bool:
        return self._closing.is_set() and not (self._calls or self._answers or self._unsaid)

    def _patience(self, pause: float) -> float:
        nearest = min((call.deadline for call in self._calls), default=None)
        return pause if nearest is None else max(min(pause, nearest - time.monotonic()), 0.0)

    def _ended(self, call: UnderWay, answer: Answer) -> None:
        """In the thread of a call."""
        if not self._thread.is_alive():  # its deadline was over long ago, and the worker has ended
            late_answer(self._store, call.call, answer)
            return
        self._answers.append((call, answer))
        self._news.set()

    def _collect(self) -> None:
        while self._answers:
            call, answer = self._answers.popleft()
            late = call in self._strays
            self._strays.discard(call)
            self._calls.discard(call)
            if not late or answer.verb == "mark":
                self._unsaid.append((call.call.bucket, answer.said(call.call), late))
        now = time.monotonic()
        for call in [call for call in self._calls if call.deadline <= now]:
            self._calls.discard(call)
            self._strays.add(call)
            self._unsaid.append((call.call.bucket, too_late(call.handler, call.call).said(call.call), False))

    def _store_answers(self) -> None:
        """In batches of one bucket, each effect once. What cannot be stored now stays."""
        while self._unsaid:
            bucket = self._unsaid[0][0]
            batch: dict[Key, tuple[int, Said, bool]] = {}
            for entry in self._unsaid:
                if entry[0] == bucket and len(batch) < limits.CLAIM_EFFECTS:
                    batch.setdefault(entry[1].call.where, entry)
            entries = list(batch.values())
            heard = self._store.run(partial(effect.settle, bucket, [said for _, said, _ in entries]))
            taken = set(map(id, entries))
            self._unsaid = [entry for entry in self._unsaid if id(entry) not in taken]
            for _, said, late in entries:
                self._tell(said, heard.get(said.call.where), late)

    def _tell(self, said: Said, status: str | None, late: bool) -> None:
        key = said.call.key
        if late:
            tell_late(said.call, status)
        elif status == "done":
            self.done += 1
        elif status is None:
            log.warning("effect %s: another caller has it; this one's refusal is not heard: %s", key, said.error)
        else:
            self.refused += 1
            settle = f"fanin effects settle {shlex.quote(key)} --done"
            what = {"registered": "it is called again", "failed": "it has failed", "unknown": "nobody knows whether it "
                    f"has happened; find out, then say `{settle}` or `--failed`"}  # fmt: skip
            tell = log.warning if status == "registered" else log.error
            tell("effect %s was refused (call %d): %s; %s", key, said.call.calls, said.error, what[status])

    def _expire(self) -> None:
        if time.monotonic() < self._expired + POLL_SECONDS:
            return
        self._expired = time.monotonic()
        for bucket in range(self._store.buckets):
            if self._store.read(partial(effect.overdue, bucket)):
                for where in self._store.run(partial(effect.expire, bucket)):
                    key = identity.effect_key(*where)
                    log.error(
                        "effect %s: its caller did not come back, nobody knows whether it has happened; find out, then "
                        "say `fanin effects settle %s --done` or `--failed`", key, key,
                    )  # fmt: skip

    def _take(self) -> bool:
        """Claim what the free places can call, and call it. Whether there was anything."""
        if len(self._strays) >= STRAY_CALLS:
            log.error(
                "worker %s: %d calls of effects have not come back; nothing new is called", self._name, STRAY_CALLS
            )
            return False
        busy = Counter(call.handler.name for call in self._calls)
        began = False
        for bucket, name in self._store.read(self._due):
            handler = self._handlers[name]
            room = handler.concurrency - busy[name]
            if room <= 0 or self._closing.is_set():
                continue
            caller_id = identity.new_claim_id()
            limit = handler.timeout + MARGIN_SECONDS
            for call in self._store.run(partial(effect.take, bucket, name, room, caller_id, self._name, limit)):
                self._calls.add(UnderWay(handler, call, self._ended))
                busy[name] += 1
                began = True
        return began

    def _due(self) -> Txn[list[tuple[int, str]]]:
        """(bucket, name) of what could be called now."""
        found = []
        for bucket in range(self._store.buckets):
            for name in sorted(self._handlers):
                rest = yield from effect.due_in(bucket, [name])
                if rest is not None and rest <= 0:
                    found.append((bucket, name))
        return found
