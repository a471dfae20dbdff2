"""The relay delivers every event at least once, whatever dies, and no event stops another."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from fanin.domain import limits
from fanin.domain.errors import BadOption, Unavailable
from fanin.domain.events import Event
from fanin.domain.policy import Backoff
from fanin.protocol import outbox
from fanin.runtime import relay as relay_module
from fanin.runtime.relay import Relay
from fanin.runtime.sinks import Several
from fanin.runtime.sinks.base import ACKED, Answer, Sink, SinkClosed, hopeless, refused, unsent
from fanin.stores.base import Store
from tests.protocol.helpers import Clock, clock, make, say
from tests.relay.receipts import Receiver, Running, ends, judge, states

__all__ = ["clock"]


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test waits for is an event, never a time."""
    monkeypatch.setattr(relay_module, "PAUSES", Backoff(first=0.001, cap=0.001))


class Dies(BaseException):
    """As if the process had been killed: nothing that follows is done."""


class DiesAfter(Receiver):
    """Sends so many of its events and is gone: before the next, or before it can say what became of the last."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def send(self, batch: Sequence[Event]) -> list[Answer]:
        answers = super().send(batch[: self.count - len(self.taken)])
        if len(self.taken) == self.count:
            raise Dies
        return answers


def test_every_event_is_delivered_once_when_nothing_goes_wrong(store: Store) -> None:
    expected = ends(store, 50)
    receiver = Receiver()
    Relay(store, receiver).run(until_idle=True)
    assert judge(expected, receiver.taken) == 0
    assert set(states(store).values()) == {"published"}
    assert [len(batch) for batch in receiver.batches] == [20, 20, 10]


@pytest.mark.parametrize("sent", [0, 7, 20])
def test_a_relay_that_dies_between_sending_and_marking_leaves_what_is_sent_again(
    store: Store, clock: Clock, sent: int
) -> None:
    expected = ends(store, 20)
    first, second = DiesAfter(sent), Receiver()
    with pytest.raises(Dies):
        Relay(store, first, lease=30.0).run(until_idle=True)
    Relay(store, second).run(until_idle=True)
    assert second.taken == []
    clock.advance(31)
    Relay(store, second).run(until_idle=True)
    assert judge(expected, first.taken + second.taken) == sent


def test_relays_beside_each_other_send_each_event_once(store: Store) -> None:
    expected = ends(store, 120)
    receiver = Receiver(batch=7)
    relays = [Running(Relay(store, receiver, poll=0.01)) for _ in range(3)]
    while len(receiver.taken) < 120:
        assert not any(r.problem for r in relays)
        threading.Event().wait(0.01)
    for running in relays:
        running.stop()
    assert judge(expected, receiver.taken) == 0


def test_a_stop_finishes_the_batch_and_stores_its_answers(store: Store) -> None:
    expected = ends(store, 30)
    begun, go = threading.Event(), threading.Event()

    class Slow(Receiver):
        def send(self, batch: Sequence[Event]) -> list[Answer]:
            begun.set()
            assert go.wait(30)
            return super().send(batch)

    receiver = Slow(batch=10)
    running = Running(Relay(store, receiver))
    assert begun.wait(30)
    running.relay.stop()
    go.set()
    running.join()
    assert len(receiver.taken) == 10
    assert sorted(states(store).values()) == ["published"] * 10 + ["waiting"] * 20
    Relay(store, receiver).run(until_idle=True)
    assert judge(expected, receiver.taken) == 0


def test_what_was_claimed_with_the_last_answers_before_a_stop_is_given_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = ends(store, 5)
    receiver = Receiver(batch=2)
    relay, exchange = Relay(store, receiver), outbox.exchange

    def stopping(*given: Any) -> Any:
        relay.stop()
        return exchange(*given)

    monkeypatch.setattr(outbox, "exchange", stopping)
    relay.run()
    assert len(receiver.taken) == 2
    assert sorted(states(store).values()) == ["published"] * 2 + ["waiting"] * 3
    monkeypatch.undo()
    Relay(store, receiver).run(until_idle=True)
    assert judge(expected, receiver.taken) == 0


def test_batch_follows_batch_with_one_commit_for_each(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = ends(store, 40)
    receiver, run, commits = Receiver(batch=4), store.run, []

    def counting(factory: Any) -> Any:
        commits.append(factory)
        return run(factory)

    monkeypatch.setattr(store, "run", counting)
    Relay(store, receiver).run(until_idle=True)
    assert judge(expected, receiver.taken) == 0
    assert len(commits) == 1 + 10  # the first claim, and then each batch with the claim of the next


def test_a_stuck_event_waits_for_itself_alone_and_is_parked_in_the_end(store: Store, clock: Clock) -> None:
    bad, *good = ends(store, 12)
    receiver = Receiver(lambda event: refused("no") if event.key == bad else ACKED)
    relay = Relay(store, receiver)
    for _ in range(limits.EVENT_TRIES):
        relay.run(until_idle=True)
        clock.advance(1_000)
    assert judge(good, receiver.taken) == 0
    assert states(store)[bad] == "parked"
    assert (relay.published, relay.refused, relay.parked) == (11, limits.EVENT_TRIES - 1, 1)
    assert [batch for batch in receiver.batches if bad in batch][1:] == [[bad]] * (limits.EVENT_TRIES - 1)
    assert say(store, "SELECT error FROM fanin.outbox WHERE event_key = :key", key=bad) == [("no",)]


def test_a_refusal_may_say_when_to_try_again(store: Store, clock: Clock) -> None:
    ends(store, 1)
    receiver = Receiver(lambda event: refused("later", 50.0) if event.tries == 1 else ACKED)
    relay = Relay(store, receiver)
    relay.run(until_idle=True)
    clock.advance(49)
    relay.run(until_idle=True)
    assert relay.published == 0
    clock.advance(2)
    relay.run(until_idle=True)
    assert relay.published == 1


def test_what_never_will_be_taken_is_parked_at_once(store: Store) -> None:
    (key,) = ends(store, 1)
    Relay(store, Receiver(lambda _: hopeless("too large"))).run(until_idle=True)
    assert states(store) == {key: "parked"}


def test_a_receiver_that_is_away_costs_no_try(store: Store) -> None:
    expected = ends(store, 5)
    calls = iter(range(limits.EVENT_TRIES * 2))
    receiver = Receiver()

    def answer(_: Event) -> Answer:
        return ACKED if next(calls, None) is None else unsent("connection refused")

    receiver.answer = answer
    Relay(store, receiver).run(until_idle=True)
    assert judge(expected, receiver.taken) == 0
    assert {tries for (tries,) in say(store, "SELECT tries FROM fanin.outbox")} == {1}


def test_a_fault_in_a_sink_is_a_refusal_and_isolates_the_event_that_causes_it(store: Store, clock: Clock) -> None:
    bad, *good = ends(store, 6)

    def answer(event: Event) -> Answer:
        if event.key == bad:
            raise ZeroDivisionError
        return ACKED

    receiver = Receiver(answer)
    relay = Relay(store, receiver)
    relay.run(until_idle=True)
    assert receiver.taken == []
    clock.advance(10)
    relay.run(until_idle=True)
    assert judge(good, receiver.taken) == 0
    assert states(store)[bad] == "waiting"


def test_a_sink_that_is_closed_ends_the_relay_and_leaves_the_events(store: Store) -> None:
    ends(store, 3)

    class Closed(Sink):
        def send(self, batch: Sequence[Event]) -> list[Answer]:
            raise SinkClosed("nobody reads")

    with pytest.raises(SinkClosed):
        Relay(store, Closed()).run()
    assert set(states(store).values()) == {"waiting"}


def test_no_transaction_is_open_while_the_receiver_is_waited_for(store: Store) -> None:
    ends(store, 1)
    done = []

    class Asks(Receiver):
        def send(self, batch: Sequence[Event]) -> list[Answer]:
            done.append(make(store, 1))  # on SQLite this would wait for an open write transaction
            return super().send(batch)

    Relay(store, Asks()).run(until_idle=True)
    assert len(done) == 1


def test_an_answer_that_cannot_be_stored_is_said_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = ends(store, 3)
    real, failures = store.run, iter(range(3))
    receiver = Receiver()

    def run(factory: Any) -> Any:
        if receiver.taken and next(failures, None) is not None:
            raise Unavailable("gone for a moment")
        return real(factory)

    monkeypatch.setattr(store, "run", run)
    Relay(store, receiver).run(until_idle=True)
    assert judge(expected, receiver.taken) == 0


def test_several_receivers_get_every_event_and_a_refusal_of_one_sends_it_to_all_again(
    store: Store, clock: Clock
) -> None:
    expected = ends(store, 4)
    one, two = Receiver(), Receiver(lambda event: refused("no") if event.tries == 1 else ACKED)
    relay = Relay(store, Several([one, two]))
    relay.run(until_idle=True)
    clock.advance(10)
    relay.run(until_idle=True)
    assert judge(expected, one.taken) == 4
    assert judge(expected, two.taken) == 0


@pytest.mark.parametrize("options", [{"lease": 0.0}, {"batch": 0}, {"batch": 100_000}])
def test_an_option_that_cannot_work_is_refused(sqlite_url: str, options: dict[str, float]) -> None:
    from fanin.stores import open_store

    with pytest.raises(BadOption):
        Relay(open_store(sqlite_url), Receiver(), **options)  # type: ignore[arg-type]
