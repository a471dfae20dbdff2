"""The relay: claim events, send them, say what became of them. While it waits for a receiver no transaction is open."""

from __future__ import annotations

import logging
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from fanin.domain import identity, limits
from fanin.domain.errors import BadOption, Unavailable
from fanin.domain.events import Event
from fanin.domain.policy import Backoff
from fanin.protocol import outbox
from fanin.protocol.steps import Txn
from fanin.runtime.sinks.base import Answer, Sink, SinkClosed, refused
from fanin.stores.base import Store

log = logging.getLogger("fanin")

LEASE_SECONDS = 60.0
"""A relay that does not come back is waited for so long."""
POLL_SECONDS = 0.5
PAUSES = Backoff(first=0.5, factor=2.0, cap=30.0)
"""Between tries to reach a receiver that takes nothing."""
RETRIES = Backoff(first=1.0, factor=2.0, cap=900.0)
"""Between the tries of one event that was refused."""


class Held(NamedTuple):
    """A claim, and the monotonic time at which half of its lease is over."""

    claim_id: str
    half_time: float


OnEvent = Callable[[Event, Answer], None]


class Relay:
    """Delivers the events of one database to one sink, until it is stopped. Several may run at once.

    lease: seconds for which a batch is claimed. batch: most events of one claim (default: what the sink takes).
    on_event: called for every answer, before it is stored.
    """

    def __init__(
        self,
        store: Store,
        sink: Sink,
        *,
        name: str | None = None,
        lease: float = LEASE_SECONDS,
        batch: int | None = None,
        poll: float = POLL_SECONDS,
        on_event: OnEvent | None = None,
    ) -> None:
        if not limits.LEASE_SECONDS_MIN <= lease <= limits.LEASE_SECONDS_MAX:
            raise BadOption(
                f"lease={lease:g}: give {limits.LEASE_SECONDS_MIN:g} to {limits.LEASE_SECONDS_MAX:g} seconds"
            )
        if batch is not None and not 1 <= batch <= limits.CLAIM_EVENTS:
            raise BadOption(f"batch={batch}: give 1 to {limits.CLAIM_EVENTS}")
        self.store = store
        self.sink = sink
        self.name = name or f"{socket.gethostname()}-{os.getpid()}-{random.randrange(16**4):04x}"
        self.lease = lease
        self.batch = min(batch or sink.batch, sink.batch)
        self.poll = poll
        self.on_event = on_event
        self._stopping = threading.Event()
        self._finishing = threading.Event()
        self._away = 0
        self.published = 0
        self.refused = 0
        self.parked = 0
        self.lost = 0

    def stop(self) -> None:
        """End after the batch that is under way, whose answers are still stored. From any thread."""
        self._stopping.set()

    def finish(self) -> None:
        """End when no event is due. From any thread."""
        self._finishing.set()

    def run(self, *, until_idle: bool = False) -> None:
        """Deliver until `stop`; ``until_idle``: until no event is due. A database or a receiver that is away is waited
        for. Raises `SinkClosed` when the receiver is gone for good."""
        log.info("relay %s delivers events", self.name)
        failures = 0
        while not self._stopping.is_set():
            try:
                busy = False
                for bucket in range(self.store.buckets):
                    while not self._stopping.is_set() and self.step(bucket):
                        busy = True
                failures = 0
                if busy:
                    continue
                if (until_idle or self._finishing.is_set()) and not self._due():
                    return
                self._stopping.wait(self.poll)
            except Unavailable as problem:
                failures += 1
                pause = PAUSES.delay(failures)
                log.warning("relay %s: %s; trying again in %.1f s", self.name, problem, pause)
                self._stopping.wait(pause)

    def step(self, bucket: int) -> int:
        """Deliver what is due in a bucket, batch after batch, until `stop`. How many events were claimed."""
        due = self.store.read(lambda: outbox.due_in(bucket))
        if due is None or due > 0:
            return 0
        held = Held(identity.new_claim_id(), time.monotonic() + self.lease / 2)
        claimed = self.store.run(lambda: outbox.take(bucket, self.batch, self.lease, held.claim_id, self.name))
        done = 0
        while claimed:
            done += len(claimed)
            held, claimed = self._batch(bucket, held, claimed)
        return done

    def _batch(self, bucket: int, held: Held, claimed: Sequence[Event]) -> tuple[Held, list[Event]]:
        """Deliver what is held. The next claim, made with the last answers; none if the relay is to wait or to end."""
        # An event that was tried before is sent alone: if it breaks a batch, or its relay, it breaks no other's.
        fresh = [event for event in claimed if event.tries == 1]
        groups = [*([fresh] if fresh else []), *([event] for event in claimed if event.tries > 1)]
        following: tuple[Held, list[Event]] = (held, [])
        while groups:
            away, following = self._deliver(bucket, held, groups.pop(0), last=not groups)
            if groups and (away or self._stopping.is_set() or time.monotonic() > held.half_time):
                self._release(bucket, held, [event for group in groups for event in group])
                groups.clear()
            if away:
                self._pause(away)
        if self._stopping.is_set() and following[1]:
            self._release(bucket, *following)
            return held, []
        return following

    def _due(self) -> bool:
        found = [self.store.read(partial(outbox.due_in, bucket)) for bucket in range(self.store.buckets)]
        return any(due is not None and due <= 0 for due in found)

    def _deliver(
        self, bucket: int, held: Held, group: Sequence[Event], last: bool
    ) -> tuple[list[Answer], tuple[Held, list[Event]]]:
        """Send a group and store the answers. Those that say that the receiver is away, and what was claimed on."""
        answers, closed = self._send(group)
        said = [self._say(event, answer) for event, answer in zip(group, answers, strict=True)]
        away = [answer for answer in answers if answer.verb == "unsent"]
        more = last and not away and closed is None and not self._stopping.is_set()
        following = self._settle(bucket, held, said, self.batch if more else 0)
        if closed is not None:
            raise closed
        if not away:
            self._away = 0
        return away, following

    def _release(self, bucket: int, held: Held, events: Sequence[Event]) -> None:
        self._settle(bucket, held, [outbox.Said(event.key, "release") for event in events], 0)

    def _send(self, group: Sequence[Event]) -> tuple[list[Answer], SinkClosed | None]:
        try:
            answers = self.sink.send(group)
            assert len(answers) == len(group), f"{len(group)} events were sent, {len(answers)} answers came"
        except SinkClosed as closed:
            return [Answer("unsent", str(closed)) for _ in group], closed
        except Exception as problem:
            log.exception("relay %s: the sink failed", self.name)
            return [refused(problem) for _ in group], None
        return answers, None

    def _say(self, event: Event, answer: Answer) -> outbox.Said:
        if self.on_event is not None:
            self.on_event(event, answer)
        if answer.verb == "acked":
            self.published += 1
            return outbox.Said(event.key, "mark")
        if answer.verb == "unsent":
            return outbox.Said(event.key, "release")
        if answer.verb == "hopeless" or event.tries >= limits.EVENT_TRIES:
            self.parked += 1
            log.error("relay %s: event %s is parked: %s", self.name, event.key, answer.error)
            return outbox.Said(event.key, "park", error=answer.error)
        self.refused += 1
        delay = RETRIES.delay(event.tries) if answer.after is None else answer.after
        log.warning(
            "relay %s: event %s was refused (try %d): %s; trying again in %.1f s",
            self.name, event.key, event.tries, answer.error, delay,
        )  # fmt: skip
        return outbox.Said(event.key, "refuse", delay, answer.error)

    def _settle(self, bucket: int, held: Held, said: Sequence[outbox.Said], room: int) -> tuple[Held, list[Event]]:
        """Until it is stored, or the claim has run out: what is not marked is sent again. Claims on up to ``room``."""
        deadline = time.monotonic() + self.lease
        following = identity.new_claim_id()

        def telling() -> Txn[tuple[list[str], list[Event]]]:
            if room == 0:
                return (yield from outbox.settle(bucket, held.claim_id, said)), []
            return (yield from outbox.exchange(bucket, held.claim_id, said, room, self.lease, following, self.name))

        while True:
            half_time = time.monotonic() + self.lease / 2
            try:
                lost, claimed = self.store.run(telling)
                break
            except Unavailable as problem:
                if time.monotonic() >= deadline:
                    log.error("relay %s: %d answers could not be stored: %s", self.name, len(said), problem)
                    return held, []
                log.warning("relay %s: %s; trying again", self.name, problem)
                time.sleep(0.2)
        if lost:
            self.lost += len(lost)
            log.warning("relay %s: %d events were taken over by another relay meanwhile", self.name, len(lost))
        return Held(following, half_time), claimed

    def _pause(self, away: Sequence[Answer]) -> None:
        self._away += 1
        asked = max((answer.after for answer in away if answer.after is not None), default=None)
        pause = PAUSES.delay(self._away) if asked is None else min(asked, limits.DELAY_SECONDS_MAX)
        log.warning("relay %s: the receiver takes nothing: %s; trying again in %.1f s", self.name, away[0].error, pause)
        self._stopping.wait(pause)
