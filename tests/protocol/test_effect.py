"""Effects: written by the accepted commit or under the fence, one row for each, and never called twice at most once."""

from __future__ import annotations

import pytest

from fanin.domain import identity, limits
from fanin.domain.errors import NotAllowedNow, Refused
from fanin.domain.model import Verdict
from fanin.protocol import effect, exchange, lease, redrive
from fanin.protocol.effect import EXPIRED, Said
from fanin.stores.base import Store
from tests.protocol.effects import begin, begun, called, effects, intent, said, states, wanting
from tests.protocol.helpers import (
    QUEUE,
    TASK,
    Clock,
    cancel,
    claim,
    done,
    failed,
    make,
    retried,
    say,
    settle,
    sweep_all,
    verdicts,
)

MODES = ("idempotent", "probe", "at_most_once")


def rows(store: Store) -> list[object]:
    return sorted(say(store, "SELECT * FROM fanin.effect"), key=repr)


# Written by the accepted commit.


def test_the_commit_of_a_part_writes_what_it_wants_done_and_a_relay_calls_it_once(store: Store) -> None:
    job_id = make(store, 1)
    (held,) = claim(store)
    assert verdicts(store, wanting(held, intent(), intent("charge", "at_most_once"))) == [Verdict.LAST]
    assert states(store, job_id) == {"mail": "registered", "charge": "registered"}
    (call,) = called(store)
    assert (call.key, call.mode, call.request) == (f"{job_id}/0/mail", "idempotent", '{"to":"a"}')
    assert not call.doubtful
    assert called(store) == []
    assert said(store, call, "mark") == "done"
    (_, mail) = effects(store, job_id)
    assert (mail.key, mail.response, mail.calls, mail.attempt) == (f"{job_id}/0/mail", "ok", 1, 1)
    assert called(store) == []
    assert states(store, job_id) == {"mail": "done", "charge": "registered"}


def test_an_exchange_writes_them_as_a_settlement_does(store: Store) -> None:
    job_id = make(store, 3)
    held = claim(store, 2)
    reports = [wanting(held[0], intent()), done(held[1])]

    def both() -> object:
        return store.run(lambda: exchange.exchange(0, reports, [QUEUE], {TASK: 60.0}, 5, identity.new_claim_id(), "w"))

    both()
    assert [(one.idx, one.status) for one in effects(store, job_id)] == [(0, "registered")]
    before = rows(store)
    both()
    assert rows(store) == before


def test_without_effects_no_statement_is_added(store: Store) -> None:
    def named(reports: list[object]) -> list[str]:
        found, step = [], effect.register(0, reports)  # type: ignore[arg-type]
        for statement in step:
            found.append(statement.query.name)
        return found

    make(store, 1)
    (held,) = claim(store)
    assert named([done(held)]) == []
    assert named([wanting(held, intent())]) == ["register"]


def test_losers_have_no_effects(store: Store, clock: Clock) -> None:
    job_id = make(store, 1)
    (old,) = claim(store, seconds=30.0)
    clock.advance(31)
    store.run(lambda: lease.wake(0))
    (new,) = claim(store)
    assert verdicts(store, wanting(old, intent("by the loser"))) == [Verdict.LOST]
    assert effects(store, job_id) == []
    assert verdicts(store, wanting(new, intent("by the winner"))) == [Verdict.LAST]
    assert verdicts(store, wanting(old, intent("by the loser"))) == [Verdict.LOST]
    assert list(states(store, job_id)) == ["by the winner"]


def test_reports_that_do_not_succeed_and_closed_jobs_have_no_effects(store: Store) -> None:
    job_id, closed = make(store, 3), make(store, 1)
    *parts, late = claim(store)
    assert late.job_id == closed
    cancel(store, closed)
    one, two, three = parts
    reports = [failed(one), retried(two), wanting(three, intent()), wanting(late, intent())]
    with_effects = [
        report if report.effects else type(report)(report.claim, report.verb, error=report.error, effects=(intent(),))
        for report in reports
    ]
    assert verdicts(store, *with_effects) == [Verdict.OK, Verdict.OK, Verdict.OK, Verdict.CLOSED]
    assert [one.idx for one in effects(store, job_id)] == [2]
    assert effects(store, closed) == []


def test_saying_a_report_again_writes_nothing_again(store: Store) -> None:
    make(store, 1)
    (held,) = claim(store)
    report = wanting(held, intent())
    assert verdicts(store, report) == [Verdict.LAST]
    (call,) = called(store)
    said(store, call, "mark")
    before = rows(store)
    assert verdicts(store, report) == [Verdict.REPLAY]
    assert rows(store) == before


# By the attempt itself, under the fence.


@pytest.mark.parametrize("mode", MODES)
def test_an_attempt_calls_and_the_answer_is_kept_for_the_next_one(store: Store, mode: str) -> None:
    job_id = make(store, 1)
    (held,) = claim(store)
    call = begin(store, held, intent(mode=mode))
    assert states(store, job_id) == {"mail": "calling"}
    assert said(store, call, "mark") == "done"
    assert begun(store, held, intent(mode=mode)).response == '"ok"'
    settle(store, failed(held))
    assert store.run(lambda: redrive.redrive(0, job_id, 1, 3)) == 2
    (again,) = claim(store)
    found = begun(store, again, intent(mode=mode))
    assert (found.status, found.response, found.call) == ("done", '"ok"', None)
    settle(store, wanting(again, intent(mode=mode)))
    assert called(store) == []
    assert states(store, job_id) == {"mail": "done"}


def test_beginning_again_under_the_same_id_is_the_same_call(store: Store) -> None:
    make(store, 1)
    (held,) = claim(store)
    for mode in MODES:
        caller_id = identity.new_claim_id()

        def once(mode: str = mode, caller_id: str = caller_id) -> object:
            return store.run(lambda: effect.begin(held, intent(mode, mode), caller_id, "w", 60.0))

        first = once()
        before = rows(store)
        assert once() == first
        assert rows(store) == before


def test_only_the_holder_of_a_part_whose_job_is_open_may_call(store: Store, clock: Clock) -> None:
    job_id = make(store, 2)
    old, other = claim(store, seconds=30.0)
    clock.advance(31)
    store.run(lambda: lease.wake(0))
    (new, _) = claim(store)
    assert new.key == old.key
    assert begun(store, old).status == "lost"
    assert effects(store, job_id) == []
    cancel(store, job_id)
    assert begun(store, new).status == "lost"
    sweep_all(store)
    assert begun(store, new).status == "lost"
    assert begun(store, other).status == "lost"
    assert effects(store, job_id) == []


def test_another_request_under_the_same_name_is_refused_and_the_order_of_fields_does_not_matter(store: Store) -> None:
    job_id = make(store, 1)
    (held,) = claim(store)
    said(store, begin(store, held, intent(request='{"a":1,"b":2}')), "mark")
    assert begun(store, held, intent(request='{"b":2,"a":1}')).status == "done"
    before = rows(store)
    assert begun(store, held, intent(request='{"a":1,"b":3}')).status == "conflict"
    assert rows(store) == before
    assert states(store, job_id) == {"mail": "done"}


@pytest.mark.parametrize("mode", MODES)
def test_a_call_under_way_is_left_alone_until_its_time_is_over(store: Store, clock: Clock, mode: str) -> None:
    make(store, 1)
    (held,) = claim(store, seconds=600.0)
    begin(store, held, intent(mode=mode), seconds=30.0)
    busy = begun(store, held, intent(mode=mode))
    assert (busy.status, busy.call) == ("calling", None)
    assert 20 < busy.seconds <= 30
    clock.advance(31)
    after = begun(store, held, intent(mode=mode))
    if mode == "at_most_once":
        assert (after.status, after.call, after.error) == ("unknown", None, EXPIRED)
    else:
        assert after.call is not None
        assert after.call.doubtful


@pytest.mark.parametrize("mode", ["idempotent", "probe"])
@pytest.mark.parametrize("doubtful", [True, False])
def test_an_attempt_takes_up_what_an_earlier_one_did_not_get_through(store: Store, mode: str, doubtful: bool) -> None:
    job_id = make(store, 1)
    (held,) = claim(store)
    call = begin(store, held, intent(mode=mode))
    assert said(store, call, "refuse", doubtful=doubtful, delay=3600.0) == ("unknown" if doubtful else "failed")
    assert called(store) == [], "nobody but an attempt of the part calls it"
    settle(store, retried(held))
    (again,) = claim(store)
    second = begin(store, again, intent(mode=mode))
    assert second.doubtful is doubtful
    assert said(store, second, "mark") == "done"
    (found,) = effects(store, job_id)
    assert (found.calls, found.attempt, found.error) == (2, 1, None)


@pytest.mark.parametrize("doubtful", [True, False])
def test_at_most_once_no_later_attempt_calls_again(store: Store, clock: Clock, doubtful: bool) -> None:
    job_id = make(store, 1, attempts=1)
    (held,) = claim(store)
    said(store, begin(store, held, intent(mode="at_most_once")), "refuse", doubtful=doubtful)
    settle(store, failed(held))
    store.run(lambda: redrive.redrive(0, job_id, 1, 3))
    (again,) = claim(store)
    found = begun(store, again, intent(mode="at_most_once"))
    assert (found.status, found.call, found.error) == ("unknown" if doubtful else "failed", None, "no")
    settle(store, wanting(again, intent(mode="at_most_once")))
    clock.advance(7200)
    assert called(store) == []
    assert effects(store, job_id)[0].calls == 1


@pytest.mark.parametrize("mode", ["idempotent", "probe"])
@pytest.mark.parametrize("left", ["failed", "unknown", "calling"])
def test_what_an_attempt_could_not_do_now_its_commit_may_leave_to_the_relay(
    store: Store, clock: Clock, mode: str, left: str
) -> None:
    job_id = make(store, 1)
    (held,) = claim(store)
    call = begin(store, held, intent(mode=mode), seconds=30.0)
    if left != "calling":
        said(store, call, "refuse", doubtful=left == "unknown")
    settle(store, wanting(held, intent(mode=mode)))
    if left == "calling":
        assert called(store) == []
        clock.advance(31)
    assert store.run(lambda: effect.expire(0)) == []
    (again,) = called(store)
    assert again.doubtful is (left != "failed")
    assert said(store, again, "mark") == "done"
    assert states(store, job_id) == {"mail": "done"}


# Called by a relay.


def test_a_claim_takes_no_more_than_asked_of_its_name_alone_the_oldest_first(store: Store, clock: Clock) -> None:
    make(store, 4)
    held = claim(store)
    for one in held:
        settle(store, wanting(one, intent(), intent("other")))
        clock.advance(1)
    assert [[c.idx for c in called(store, limit=3)] for _ in range(3)] == [[0, 1, 2], [3], []]
    assert len(called(store, "other", 10)) == 4


def test_a_claim_whose_answer_was_lost_gives_back_what_it_took(store: Store) -> None:
    make(store, 2)
    for one in claim(store):
        settle(store, wanting(one, intent(mode="at_most_once")))
    caller_id = identity.new_claim_id()

    def take() -> list[effect.Call]:
        return store.run(lambda: effect.take(0, "mail", 5, caller_id, "r", 60.0))

    first = take()
    assert len(first) == 2
    assert take() == first, "else it would count as called, and never be"


def test_a_refused_call_waits_for_itself_alone_and_is_given_up_after_its_limit(store: Store, clock: Clock) -> None:
    job_id = make(store, 2)
    for one in claim(store):
        settle(store, wanting(one, intent(calls=3)))
    first, second = called(store)
    assert said(store, first, "refuse", delay=30.0) == "registered"
    assert said(store, second, "mark") == "done"
    assert called(store) == []
    for expected in ("registered", "failed"):
        clock.advance(31)
        (again,) = called(store)
        assert said(store, again, "refuse", delay=30.0) == expected
    clock.advance(1e6)
    assert called(store) == []
    assert [one.status for one in effects(store, job_id)] == ["failed", "done"]


def test_what_may_have_happened_is_never_called_failed(store: Store, clock: Clock) -> None:
    job_id = make(store, 1)
    (held,) = claim(store)
    settle(store, wanting(held, intent(calls=2)))
    (call,) = called(store)
    assert said(store, call, "refuse", doubtful=True) == "registered"
    (call,) = called(store)
    assert call.doubtful
    assert said(store, call, "refuse", doubtful=call.doubtful) == "unknown"
    assert store.run(lambda: effect.cancel(0, job_id)) == 0
    assert states(store, job_id) == {"mail": "unknown"}


@pytest.mark.parametrize("mode", MODES)
def test_a_call_that_does_not_come_back_is_made_again_only_where_that_is_harmless(
    store: Store, clock: Clock, mode: str
) -> None:
    job_id = make(store, 1)
    (held,) = claim(store)
    settle(store, wanting(held, intent(mode=mode)))
    (lost,) = called(store, seconds=30.0)
    assert store.run(lambda: effect.expire(0)) == []
    clock.advance(31)
    again = called(store)
    if mode == "at_most_once":
        assert again == []
        assert store.read(lambda: effect.overdue(0))
        assert store.run(lambda: effect.expire(0)) == [lost.where]
        assert not store.read(lambda: effect.overdue(0))
        (found,) = effects(store, job_id)
        assert (found.status, found.calls, found.error, found.doubtful) == ("unknown", 1, EXPIRED, True)
    else:
        assert [call.doubtful for call in again] == [True]
        assert not store.read(lambda: effect.overdue(0))
        assert said(store, lost, "refuse") is None, "another one calls now"
        assert states(store, job_id) == {"mail": "calling"}
    assert said(store, lost, "mark") == "done", "that it has happened is true, whoever says so"
    assert states(store, job_id) == {"mail": "done"}


def test_the_last_call_that_does_not_come_back_is_for_a_person(store: Store, clock: Clock) -> None:
    make(store, 1)
    (held,) = claim(store)
    settle(store, wanting(held, intent(calls=2)))
    for _ in range(2):
        assert len(called(store, seconds=30.0)) == 1
        clock.advance(31)
    assert called(store) == []
    assert len(store.run(lambda: effect.expire(0))) == 1


def test_a_call_of_an_attempt_that_died_is_for_a_person_if_no_later_attempt_comes(store: Store, clock: Clock) -> None:
    job_id = make(store, 1, attempts=2)
    (held,) = claim(store)
    begin(store, held, seconds=30.0)
    clock.advance(31)
    assert called(store) == []
    assert len(store.run(lambda: effect.expire(0))) == 1
    store.run(lambda: lease.wake(0))
    clock.advance(60)
    store.run(lambda: lease.wake(0))
    (again,) = claim(store)
    assert said(store, begin(store, again), "mark") == "done"
    assert states(store, job_id) == {"mail": "done"}


def test_saying_it_again_changes_nothing_and_a_batch_is_heard_each_for_itself(store: Store) -> None:
    make(store, 4)
    for one in claim(store):
        settle(store, wanting(one, intent(calls=3)))
    calls = called(store)
    reports = [
        Said(calls[3], "mark", response="1"), Said(calls[0], "refuse", error="e", delay=9.0),
        Said(calls[2], "refuse", error="e", final=True), Said(calls[1], "refuse", error="e", final=True, doubtful=True),
    ]  # fmt: skip
    first = store.run(lambda: effect.settle(0, reports))
    assert sorted((where[1], status) for where, status in first.items()) == [
        (0, "registered"), (1, "unknown"), (2, "failed"), (3, "done"),
    ]  # fmt: skip
    before = rows(store)
    assert store.run(lambda: effect.settle(0, reports)) == first
    assert rows(store) == before


def test_an_idle_relay_is_told_when_the_next_call_is_due(store: Store, clock: Clock) -> None:
    def due(*names: str) -> float | None:
        return store.read(lambda: effect.due_in(0, names))

    assert due("mail", "once") is None
    make(store, 1)
    (held,) = claim(store)
    settle(store, wanting(held, intent(), intent("once", "at_most_once"), intent("other")))
    assert due("nobody") is None
    (call,) = called(store, seconds=30.0)
    (once,) = called(store, "once", seconds=5.0)
    found = due("mail", "once")
    assert found is not None
    assert 20 < found <= 30, "what may not be called again is not waited for"
    assert said(store, call, "refuse", delay=100.0) == "registered"
    found = due("mail", "once")
    assert found is not None
    assert 90 < found <= 100
    assert due("other", "mail") == pytest.approx(0, abs=60)
    said(store, once, "mark")


# What people do.


def stuck(store: Store, mode: str = "idempotent", doubtful: bool = True) -> tuple[str, effect.Key]:
    job_id = make(store, 1)
    (held,) = claim(store)
    settle(store, wanting(held, intent(mode=mode, calls=1)))
    (call,) = called(store)
    said(store, call, "refuse", doubtful=doubtful)
    return job_id, call.where


@pytest.mark.parametrize("happened", [True, False])
def test_a_person_settles_what_nobody_knows(store: Store, clock: Clock, happened: bool) -> None:
    job_id, where = stuck(store, "at_most_once")

    def settle_it() -> str:
        return store.run(lambda: effect.by_hand(0, where, happened, '"by phone"', "asked the bank"))

    assert settle_it() == ("done" if happened else "failed")
    before = rows(store)
    assert settle_it() == ("done" if happened else "failed")
    (found,) = effects(store, job_id)
    assert (found.note, found.response) == ("asked the bank", "by phone" if happened else None)
    assert not found.doubtful
    if happened:
        assert rows(store) == before
        with pytest.raises(NotAllowedNow, match="is done, it cannot become failed"):
            store.run(lambda: effect.by_hand(0, where, False, None, None))
    clock.advance(1e6)
    assert called(store) == []


def test_what_is_being_called_cannot_be_settled_by_hand_nor_what_is_not_there(store: Store) -> None:
    make(store, 1)
    (held,) = claim(store)
    settle(store, wanting(held, intent()))
    (call,) = called(store)
    with pytest.raises(NotAllowedNow, match="is being called, for"):
        store.run(lambda: effect.by_hand(0, call.where, True, None, None))
    with pytest.raises(Refused, match="there is no effect"):
        store.run(lambda: effect.by_hand(0, (held.job_id, 0, "else"), True, None, None))
    assert said(store, call, "refuse", delay=60.0) == "registered"
    assert store.run(lambda: effect.by_hand(0, call.where, True, None, "by post")) == "done"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("doubtful", [True, False])
def test_a_person_has_a_stuck_effect_called_again(store: Store, mode: str, doubtful: bool) -> None:
    job_id, where = stuck(store, mode, doubtful)
    assert called(store) == []

    def retry() -> list[effect.Key]:
        return store.run(lambda: effect.retry(0, [where], 2))

    assert store.read(lambda: effect.refused(0)) == ([] if doubtful else [where])
    if mode == "at_most_once" and doubtful:
        assert retry() == [], "a second call needs the word that the first one did not happen"
        store.run(lambda: effect.by_hand(0, where, False, None, "nothing has arrived"))
    assert retry() == [where]
    assert retry() == []
    (call,) = called(store)
    assert call.doubtful is (doubtful and mode != "at_most_once")
    said(store, call, "refuse", doubtful=call.doubtful)
    again = called(store)
    assert len(again) == (0 if mode == "at_most_once" else 1)
    (found,) = effects(store, job_id)
    assert found.calls_allowed == (2 if mode == "at_most_once" else 3)


# What compensations do.


def test_a_compensation_cancels_what_surely_has_not_happened(store: Store) -> None:
    job_id = make(store, 1)
    (held,) = claim(store)
    names = ("waits", "refused", "in doubt", "called", "done", "failed")
    settle(store, wanting(held, *map(intent, names)))
    for name, verb, more in (
        ("refused", "refuse", {}), ("failed", "refuse", {"final": True}),
        ("in doubt", "refuse", {"doubtful": True}), ("done", "mark", {}),
    ):  # fmt: skip
        said(store, called(store, name)[0], verb, **more)
    (under_way,) = called(store, "called")
    assert store.run(lambda: effect.cancel(0, job_id)) == 3
    assert store.run(lambda: effect.cancel(0, job_id)) == 0
    assert states(store, job_id) == {
        "waits": "cancelled", "refused": "cancelled", "failed": "cancelled", "in doubt": "registered",
        "called": "calling", "done": "done",
    }  # fmt: skip
    assert store.run(lambda: effect.retry(0, [(job_id, 0, name) for name in names], 3)) == []
    assert called(store, "waits") == called(store, "refused") == called(store, "failed") == []
    assert said(store, under_way, "mark") == "done"


# Reading.


def test_effects_are_listed_by_job_in_order_and_counted_by_state(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effect, "PAGE_EFFECTS", 3)
    job_id = make(store, 3)
    settle(store, *[wanting(one, intent("b"), intent("a")) for one in claim(store)])
    page, after = store.read(lambda: effect.of_job(0, job_id, effect.FIRST))
    assert after == (1, "a")
    rest, after = store.read(lambda: effect.of_job(0, job_id, (1, "a")))
    assert store.read(lambda: effect.of_job(0, job_id, after or effect.FIRST)) == ([], None)
    assert [(one.idx, one.name) for one in (*page, *rest)] == [(n, name) for n in range(3) for name in "ab"]
    (call,) = called(store, "a", 1)
    said(store, call, "refuse", final=True)
    newest = store.read(lambda: effect.newest([0], None, 2))
    assert newest[0].key == call.key
    assert [one.status for one in store.read(lambda: effect.newest([0], "failed", 9))] == ["failed"]
    counted = store.read(lambda: effect.counts([0]))
    assert {state: many for state, (many, _) in counted.items()} == {"failed": 1, "registered": 5}
    assert store.read(lambda: effect.find(0, call.where)) == ("failed", call.request)
    assert store.read(lambda: effect.find(0, (job_id, 9, "a"))) is None


def test_no_claim_takes_more_than_the_bound(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CLAIM_EFFECTS", 2)
    make(store, 3)
    settle(store, *[wanting(one, intent()) for one in claim(store)])
    assert len(called(store, limit=1000)) == 2
