"""Jobs that end, and receivers that write down what they were given."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from fanin.domain import identity
from fanin.domain.events import Event, structured
from fanin.runtime.relay import Relay
from fanin.runtime.sinks.base import ACKED, Answer, Sink
from fanin.stores.base import Store
from tests.protocol.helpers import make, say


def ends(store: Store, count: int) -> list[str]:
    """So many jobs that end at once; the keys of their events."""
    return [identity.finished_key(make(store, 0), 1) for _ in range(count)]


def event(n: int = 0, reason: str | None = None) -> Event:
    """An event without a database."""
    job_id = f"01980000-0000-7000-8000-{n:012d}"
    text = "null" if reason is None else f'"{reason}"'
    payload = (
        f'{{"version":1,"job_id":"{job_id}","run":1,"status":"completed","outcome":"all_ok","reason":{text},'
        '"succeeded":1,"failed":0,"abandoned":0,"key":null,"task":"t"}'
    )
    return Event(0, identity.finished_key(job_id, 1), job_id, 1, "job.finished", payload, 1_700_000_000.25 + n)


def states(store: Store) -> dict[str, str]:
    return dict(say(store, "SELECT event_key, status FROM fanin.outbox"))


class Receiver(Sink):
    """Keeps (key, bytes) of everything that it takes. ``answer`` may say otherwise."""

    def __init__(self, answer: Callable[[Event], Answer] = lambda _: ACKED, batch: int = 20) -> None:
        self.taken: list[tuple[str, bytes]] = []
        self.batches: list[list[str]] = []
        self.answer = answer
        self.batch = batch
        self._lock = threading.Lock()

    def send(self, batch: Sequence[Event]) -> list[Answer]:
        self.batches.append([event.key for event in batch])
        answers = [self.answer(event) for event in batch]
        with self._lock:
            self.taken += [(e.key, structured(e)) for e, a in zip(batch, answers, strict=True) if a == ACKED]
        return answers


class Running:
    """A relay in a thread of its own."""

    def __init__(self, relay: Relay) -> None:
        self.relay = relay
        self.problem: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.relay.run()
        except BaseException as problem:
            self.problem = problem

    def wait_for(self, events: int, seconds: float = 90.0) -> None:
        """Until so many were taken."""
        relay, deadline = self.relay, time.monotonic() + seconds
        while relay.published < events:
            assert self.problem is None
            assert time.monotonic() < deadline, f"{relay.published} of {events} were taken, {relay.refused} refused"
            time.sleep(0.02)

    def stop(self, seconds: float = 60.0) -> None:
        self.relay.stop()
        self.join(seconds)

    def join(self, seconds: float = 60.0) -> None:
        self._thread.join(seconds)
        assert not self._thread.is_alive(), "the relay did not end"


def judge(expected: Sequence[str], taken: Sequence[tuple[str, bytes]]) -> int:
    """Nothing is skipped, nothing is invented, and what came twice came with the same bytes. How many came twice."""
    bodies: dict[str, set[bytes]] = {}
    for key, body in taken:
        bodies.setdefault(key, set()).add(body)
    assert set(bodies) == set(expected)
    assert all(len(found) == 1 for found in bodies.values())
    return len(taken) - len(bodies)
