"""Effects from the handler to the receiver: net one for each key, and at most once is never called twice."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import fanin
from fanin.domain import identity, limits
from fanin.domain.effects import Intent
from fanin.domain.errors import EffectFailed, EffectUnknown
from fanin.protocol import effect
from fanin.runtime.effects import EffectHandler
from fanin.testing.inline import Attempt, Inline
from tests.runtime.receiver import Receiver
from tests.runtime.working import take_over, until, working

QUICK = {"backoff": 0.01}
MODES = ("idempotent", "probe", "at_most_once")


class Mail(msgspec.Struct):
    to: str
    copies: int = 1


def handled(app: fanin.App, receiver: Receiver, mode: str, name: str = "mail", **options: Any) -> None:
    """Register the receiver as the handler of an effect."""

    @app.effect(name, mode=mode, probe=receiver.probe if mode == "probe" else None, **{**QUICK, **options})
    def send(request: Mail, key: str) -> str:
        assert isinstance(request, Mail)
        return receiver.call(request, key)

    if mode == "at_most_once":
        app.effects[name].backoff = fanin.Backoff(0.01)


def states(job: fanin.Job) -> list[str]:
    return [one.status for one in job.effects()]


def test_what_parts_want_done_is_done_once_each_after_their_results_were_accepted(app: fanin.App) -> None:
    receiver = Receiver()
    handled(app, receiver, "idempotent")

    @app.task
    def order(n: int) -> int:
        part = fanin.current()
        assert part.effect("mail", Mail(f"{n}@x.org")) is None
        part.effect("mail", Mail(f"{n}@x.org"))  # the same again
        assert not receiver.calls
        return n

    job = app.map(order, range(5))
    app.run_worker(until_idle=True)
    assert [(e.idx, e.status, e.response, e.calls) for e in job.effects()] == [
        (n, "done", "receipt of mail", 1) for n in range(5)
    ]
    assert receiver.applied == {f"{job.id}/{n}/mail": 1 for n in range(5)}
    assert receiver.requests[f"{job.id}/3/mail"] == Mail("3@x.org")


@pytest.mark.parametrize("mode", ["idempotent", "probe"])
def test_a_receiver_that_loses_answers_has_net_one_of_each_key(app: fanin.App, mode: str) -> None:
    fates = ("lost", "cut", "ok", "lost")
    receiver = Receiver(lambda key, n: fates[(int(key.split("/")[1]) + n) % 4], honours_keys=mode == "idempotent")
    handled(app, receiver, mode, attempts=50)

    @app.task
    def order(n: int) -> None:
        fanin.current().effect("mail", Mail(f"{n}@x.org"))

    job = app.map(order, range(12))
    with working(app):
        job.wait(90)
        until(lambda: set(states(job)) == {"done"}, "all effects done")
    assert receiver.applied == {f"{job.id}/{n}/mail": 1 for n in range(12)}
    assert sum(receiver.calls.values()) > 12
    assert bool(receiver.probes) is (mode == "probe")


@pytest.mark.parametrize("fate", ["lost", "cut"])
def test_at_most_once_is_called_once_and_a_person_decides(app: fanin.App, fate: str) -> None:
    receiver = Receiver(lambda *_: fate, honours_keys=False)
    handled(app, receiver, "at_most_once")

    @app.task
    def order(n: int) -> None:
        fanin.current().effect("mail", Mail("a"))

    job = app.map(order, range(3))
    app.run_worker(until_idle=True)
    app.run_worker(until_idle=True)
    assert states(job) == ["unknown"] * 3
    assert set(receiver.calls.values()) == {1}
    assert all("Cut" in (one.error or "") for one in job.effects())


def test_a_refusal_that_says_so_is_no_doubt(app: fanin.App) -> None:
    refusals = {"0": fanin.Permanent("no such address"), "1": fanin.RetryLater(0.01, "later"), "2": "ok"}
    receiver = Receiver(lambda key, n: refusals[key.split("/")[1]] if n == 1 else "ok")
    handled(app, receiver, "idempotent")
    handled(app, Receiver(lambda *_: fanin.RetryLater(0.01, "not now")), "at_most_once", "once")

    @app.task
    def order(n: int) -> None:
        fanin.current().effect("mail", Mail("a"))
        fanin.current().effect("once", Mail("a"))

    job = app.map(order, range(3))
    inline = Inline(app)
    inline.run_until_idle()
    assert [(e.name, e.status, e.calls) for e in job.effects()] == [
        ("mail", "failed", 1), ("once", "failed", 1), ("mail", "done", 2), ("once", "failed", 1),
        ("mail", "done", 1), ("once", "failed", 1),
    ]  # fmt: skip
    inline.close()


@pytest.mark.parametrize("asked", ["30s", "soon", None, -1, math.nan, 10**400])
@pytest.mark.parametrize("mode", ["idempotent", "at_most_once"])
def test_a_refusal_is_no_doubt_whatever_time_it_asks_for(app: fanin.App, mode: str, asked: Any) -> None:
    def refuses(request: str, key: str) -> None:
        raise fanin.RetryLater(asked, "not now")

    app.effect("mail", mode=mode, attempts=1)(refuses)

    @app.task
    def order(n: int) -> None:
        fanin.current().effect("mail", "a")

    job = app.map(order, [1])
    app.run_worker(until_idle=True)
    assert [(e.status, e.calls, e.error) for e in job.effects()] == [("failed", 1, "RetryLater: not now")]


def test_a_call_that_stalls_is_over_at_its_deadline_and_its_late_answer_counts(app: fanin.App) -> None:
    receiver = Receiver(lambda key, _: "stall" if key.split("/")[1] == "0" else "ok", honours_keys=False)
    handled(app, receiver, "at_most_once", timeout=0.2)

    @app.task
    def order(n: int) -> None:
        fanin.current().effect("mail", Mail("a"))

    job = app.map(order, range(3))
    with working(app):
        until(lambda: states(job) == ["unknown", "done", "done"], "the stalled call is given up, the others done")
        assert "no answer within 0.2 s" in (next(iter(job.effects())).error or "")
        receiver.go.set()
        until(lambda: states(job) == ["done"] * 3, "its answer came after all")
    assert set(receiver.calls.values()) == {1}
    assert set(receiver.applied.values()) == {1}


def test_a_receiver_that_stalls_does_not_keep_the_others_waiting(app: fanin.App) -> None:
    slow, quick = Receiver(lambda *_: "stall"), Receiver()
    handled(app, slow, "idempotent", "slow", concurrency=1)
    handled(app, quick, "idempotent", "quick", concurrency=1)

    @app.task
    def order(n: int) -> None:
        fanin.current().effect("slow", Mail("a"))
        fanin.current().effect("quick", Mail("a"))

    job = app.map(order, range(4))
    with working(app):
        until(lambda: [e.status for e in job.effects() if e.name == "quick"] == ["done"] * 4, "the quick ones are done")
        assert sum(slow.calls.values()) == 1
        slow.go.set()
        until(lambda: states(job) == ["done"] * 8, "the slow ones too")


# Now, by the attempt itself.


@pytest.mark.parametrize("mode", MODES)
def test_a_call_now_gives_the_response_and_is_not_made_again_after_a_redrive(app: fanin.App, mode: str) -> None:
    receiver = Receiver(honours_keys=False)
    handled(app, receiver, mode)
    broken = [True]

    @app.task(attempts=1)
    def order(n: int) -> str:
        answer = fanin.current().effect("mail", Mail("a"), now=True)
        if broken:
            raise ValueError(answer)
        return str(answer)

    job = app.map(order, [1])
    app.run_worker(until_idle=True)
    assert job.status == "failed"
    assert states(job) == ["done"]
    broken.clear()
    assert job.redrive() == 2
    app.run_worker(until_idle=True)
    assert job.result() == "receipt of mail"
    assert receiver.calls == {f"{job.id}/0/mail": 1}


@pytest.mark.parametrize("mode", MODES)
def test_a_call_now_whose_answer_is_lost_is_taken_up_by_the_next_attempt_where_that_is_harmless(
    app: fanin.App, mode: str
) -> None:
    receiver = Receiver(lambda _, n: "lost" if n == 1 else "ok", honours_keys=mode == "idempotent")
    handled(app, receiver, mode)
    raised = []

    @app.task(attempts=3, backoff=0.01)
    def order(n: int) -> str:
        try:
            return str(fanin.current().effect("mail", Mail("a"), now=True))
        except EffectUnknown as problem:
            raised.append(str(problem))
            raise

    job = app.map(order, [1])
    app.run_worker(until_idle=True)
    assert set(receiver.applied.values()) == {1}
    if mode == "at_most_once":
        assert (job.status, states(job), len(raised)) == ("failed", ["unknown"], 3)
        assert set(receiver.calls.values()) == {1}
        key = f"{job.id}/0/mail"
        assert f"fanin effects settle {key} --done" in raised[0]
        store = app.store
        store.run(lambda: effect.by_hand(store.bucket(job.id), (job.id, 0, "mail"), True, '"by phone"', None))
        job.redrive()
        app.run_worker(until_idle=True)
        assert job.result() == "by phone"
        assert set(receiver.calls.values()) == {1}
    else:
        assert job.result() == ("found mail" if mode == "probe" else "receipt of mail")
        assert len(raised) == 1
        assert states(job) == ["done"]


def test_a_call_now_that_is_refused_fails_the_attempt_and_can_be_left_to_the_commit(app: fanin.App) -> None:
    receiver = Receiver(lambda _, n: fanin.RetryLater(0.01, "busy") if n == 1 else "ok")
    handled(app, receiver, "idempotent")
    said = []

    @app.task
    def order(n: int) -> str:
        part = fanin.current()
        try:
            part.effect("mail", Mail("a"), now=True)
        except EffectFailed as problem:
            said.append(str(problem))
            part.effect("mail", Mail("a"))
        return "sent or will be"

    job = app.map(order, [1])
    app.run_worker(until_idle=True)
    assert job.result() == "sent or will be"
    assert "was not performed: RetryLater: busy" in said[0]
    assert [(e.status, e.calls) for e in job.effects()] == [("done", 2)]


def test_a_late_answer_to_a_call_now_is_kept(app: fanin.App) -> None:
    receiver = Receiver(lambda *_: "stall", honours_keys=False)
    handled(app, receiver, "at_most_once", timeout=0.05)

    @app.task(attempts=1)
    def order(n: int) -> None:
        fanin.current().effect("mail", Mail("a"), now=True)

    job = app.map(order, [1])
    app.run_worker(until_idle=True)
    assert (job.status, states(job)) == ("failed", ["unknown"])
    receiver.go.set()
    until(lambda: states(job) == ["done"], "the answer was kept")


def claimed(inline: Inline) -> Attempt:
    attempt = inline.claim()
    assert attempt is not None
    return attempt


def test_a_zombie_calls_nothing_and_its_intents_are_not_written(app: fanin.App) -> None:
    receiver = Receiver()
    handled(app, receiver, "idempotent")
    handled(app, receiver, "idempotent", "later")

    @app.task
    def order(n: int) -> int:
        part = fanin.current()
        part.effect("later", Mail(f"by attempt {part.attempt}"))
        if part.attempt == 1:
            part.effect("mail", Mail("a"), now=True)
        return n

    job = app.map(order, [1])
    inline = Inline(app)
    old = claimed(inline)
    inline.lose(old)
    new = claimed(inline)
    old.run()
    assert old.found is not None
    assert old.found.verb == "lost"
    new.run()
    assert new.commit().value == "last"
    assert old.commit().value == "lost"
    inline.run_until_idle()
    assert [(e.name, e.request) for e in job.effects()] == [("later", {"to": "by attempt 2", "copies": 1})]
    assert receiver.applied == {f"{job.id}/0/later": 1}
    inline.close()


def test_a_part_that_is_taken_over_while_it_runs_leaves_no_effect(app: fanin.App) -> None:
    receiver = Receiver()
    handled(app, receiver, "idempotent")
    jobs: list[fanin.Job] = []

    @app.task
    def order(n: int) -> int:
        fanin.current().effect("mail", Mail("a"))
        take_over(app, until(lambda: jobs, "the job is known")[0])
        return n

    with working(app) as worker:
        jobs.append(app.map(order, [1]))
        until(lambda: worker.lost, "the report was refused")
    assert states(jobs[0]) == []
    assert not receiver.calls


def test_a_crash_between_call_and_mark_is_settled_by_the_next_attempt(app: fanin.App) -> None:
    receiver = Receiver(honours_keys=False)
    handled(app, receiver, "probe")

    @app.task(lease=600)
    def order(n: int) -> str:
        return str(fanin.current().effect("mail", Mail("a"), now=True))

    job = app.map(order, [1])
    inline = Inline(app)
    attempt = claimed(inline)
    held = attempt._claim
    intent = Intent("mail", "probe", '{"to":"a","copies":1}', 5)
    begun = app.store.run(lambda: effect.begin(held, intent, identity.new_claim_id(), "w", 40.0))
    assert begun.call is not None
    receiver.call(Mail("a"), begun.call.key)  # and the worker dies here
    inline.lose(attempt)
    inline.run_until_idle()
    assert job.result() == "found mail"
    assert set(receiver.applied.values()) == {1}
    assert set(receiver.calls.values()) == {1}
    inline.close()


# What is refused.


def test_another_request_under_the_same_name_fails_the_part(app: fanin.App) -> None:
    receiver = Receiver()
    handled(app, receiver, "idempotent")

    @app.task(attempts=3)
    def order(when: str) -> None:
        part = fanin.current()
        first = part.attempt == 1
        if when == "in one attempt":
            part.effect("mail", Mail("a"))
            part.effect("mail", Mail("b"))
        elif when == "after a call":
            part.effect("mail", Mail("a"), now=True)
            part.effect("mail", Mail("b"))
        elif when == "in two attempts":
            part.effect("mail", Mail("a" if first else "b"), now=first)
        else:
            part.effect("mail", Mail("a" if first else "b"), now=True)
        raise ValueError("again")

    job = app.map(order, ["in one attempt", "after a call", "in two attempts", "now in two attempts"], tolerate=4)
    inline = Inline(app)
    inline.run_until_idle()
    failures = job.failures()
    assert [f.type for f in failures] == ["KeyConflict"] * 4
    assert all("was named before with another request" in f.message for f in failures)
    assert [f.attempt for f in failures] == [1, 1, 2, 2]
    inline.close()


def inside(app: fanin.App, deed: Callable[[Any], Any]) -> str:
    """The failure of a part whose handler does this."""

    @app.task(attempts=1)
    def attempt_it(n: int) -> None:
        deed(fanin.current())

    job = app.submit(attempt_it, 1)
    inline = Inline(app)
    inline.run_until_idle()
    (failure,) = job.failures()
    inline.close()
    return f"{failure.type}: {failure.message}"


@pytest.mark.parametrize(
    ("deed", "said"),
    [
        (lambda p: p.effect("fax"), "effect 'fax' has no handler in this application (it has mail)"),
        (lambda p: p.effect("fax", mode="idempotent", now=True), "decorate a function with @app.effect('fax', mode=…)"),
        (lambda p: p.effect("mail", Mail("a"), mode="idempotent"), "has mode 'probe', and only 'at_most_once' is"),
        (lambda p: p.effect("fax", mode="twice"), "BadOption"),
        (lambda p: p.effect("", mode="probe"), "effect name ''"),
        (lambda p: p.effect("mail", "a"), "BadPayload: the request of effect mail"),
        (lambda p: p.effect("mail", Mail("a" * limits.EFFECT_BYTES)), "the limit is 256000"),
        (
            lambda p: [p.effect(f"{n}", n, mode="probe") for n in range(101)],
            "LimitExceeded: part 0 wants more than",
        ),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_written(
    app: fanin.App, deed: Callable[[Any], Any], said: str
) -> None:
    handled(app, Receiver(), "probe")
    assert said in inside(app, deed)
    assert app.store.read(lambda: effect.newest(range(app.store.buckets), None, 5)) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mode": "maybe"}, "say what the receiver promises"),
        ({"mode": "probe"}, "mode 'probe' needs a probe"),
        ({"mode": "idempotent", "probe": lambda request, key: None}, "no other has a use for one"),
        ({"mode": "at_most_once", "attempts": 3}, "mode 'at_most_once' makes one call"),
        ({"mode": "idempotent", "attempts": 0}, "attempts=0"),
        ({"mode": "idempotent", "timeout": 0}, "timeout=0"),
        ({"mode": "idempotent", "timeout": "2h"}, "at most 3600 seconds"),
        ({"mode": "idempotent", "concurrency": 0}, "concurrency=0"),
    ],
)
def test_options_that_cannot_work_are_refused(app: fanin.App, options: dict[str, Any], said: str) -> None:
    with pytest.raises(fanin.BadOption, match=said):
        app.effect("mail", **options)(lambda request, key: None)


def test_a_name_is_taken_once_and_a_handler_takes_a_request_and_a_key(app: fanin.App) -> None:
    made = app.effect("mail", mode="idempotent")(lambda request, key: None)
    assert made(1, "k") is None
    with pytest.raises(fanin.BadOption, match="'mail' is taken"):
        app.effect("mail", mode="idempotent")(lambda request, key: None)
    with pytest.raises(fanin.BadOption, match="is called with \\(request, key\\)"):
        app.effect("fax", mode="idempotent")(lambda request: None)
    with pytest.raises(fanin.BadOption, match="effect name"):
        app.effect("", mode="idempotent")


def test_a_part_that_ends_with_a_job_of_its_own_has_no_effects(app: fanin.App) -> None:
    handled(app, Receiver(), "idempotent")

    @app.task
    def leaf(n: int) -> int:
        return n

    def deed(part: fanin.Part) -> Any:
        part.effect("mail", Mail("a"))
        return part.fan_out(leaf, [1, 2])

    @app.task(attempts=1)
    def split(n: int) -> Any:
        return deed(fanin.current())

    job = app.submit(split, 1)
    inline = Inline(app)
    inline.run_until_idle()
    assert "a part that ends with fan_out cannot have effects of its own" in job.failures()[0].message
    assert states(job) == []
    inline.close()


# Where handlers run.


def test_async_handlers_want_effects_and_perform_them(app: fanin.App) -> None:
    calls: list[str] = []

    @app.effect("mail", mode="idempotent", timeout=30)
    async def send(request: Mail, key: str) -> str:
        await asyncio.sleep(0)
        calls.append(key)
        return "sent"

    @app.effect("slow", mode="at_most_once", timeout=0.05)
    async def stall(request: None, key: str) -> None:
        await asyncio.sleep(3600)

    @app.task
    async def order(n: int) -> str:
        part = fanin.current()
        part.effect("mail", Mail("a"))
        part.effect("slow")
        with pytest.raises(fanin.BadOption, match=r"await asyncio.to_thread\(part.effect, 'now'"):
            part.effect("now", Mail("a"), now=True)
        return str(await asyncio.to_thread(part.effect, "now", Mail("b"), now=True))

    app.effect("now", mode="idempotent")(send)
    job = app.map(order, [1])
    app.run_worker(until_idle=True)
    assert job.result() == "sent"
    assert [(e.name, e.status) for e in job.effects()] == [("mail", "done"), ("now", "done"), ("slow", "unknown")]
    assert calls == [f"{job.id}/0/now", f"{job.id}/0/mail"]


def test_a_handler_in_a_process_of_its_own_wants_effects(app: fanin.App, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.runtime import process_effects

    monkeypatch.setenv("FANIN_URL", app.url)
    for name, task in process_effects.app.tasks.items():
        app.tasks[name] = task
    receiver = Receiver()
    handled(app, receiver, "idempotent")
    job = app.map(process_effects.order, [1, 2])
    app.run_worker(until_idle=True)
    assert os.getpid() not in set(job.results())
    assert [(e.idx, e.name, e.status, e.response) for e in job.effects()] == [
        (n, name, "done", said) for n in range(2) for name, said in (("mail", "receipt of mail"), ("now", "in a child"))
    ]


def test_a_worker_with_effects_and_no_tasks_serves_those_of_others(app: fanin.App, migrated_url: str) -> None:
    receiver = Receiver()

    @app.task
    def order(n: int) -> None:
        fanin.current().effect("mail", {"to": "a"}, mode="at_most_once")

    job = app.map(order, [1])
    app.run_worker(until_idle=True)
    assert states(job) == ["registered"]
    with fanin.App(migrated_url) as other:
        handled(other, receiver, "idempotent")
        other.run_worker(until_idle=True)
    assert states(job) == ["done"]
    assert set(receiver.applied.values()) == {1}


def test_a_response_that_cannot_be_kept_does_not_undo_the_effect(app: fanin.App) -> None:
    @app.effect("mail", mode="at_most_once")
    def send(request: Any, key: str) -> object:
        return object()

    @app.task
    def order(n: int) -> None:
        fanin.current().effect("mail", n)

    job = app.map(order, [1])
    app.run_worker(until_idle=True)
    (one,) = job.effects()
    assert (one.status, one.response) == ("done", None)
    assert "the response was not kept" in (one.error or "")


def test_the_key_of_a_part_makes_keys_of_its_calls(app: fanin.App) -> None:
    keys: list[str] = []

    @app.task
    def order(n: int) -> None:
        key = fanin.current().idempotency_key
        keys.extend((key, key("charge")))

    job = app.map(order, [1])
    app.run_worker(until_idle=True)
    assert keys == [f"{job.id}/0", f"{job.id}/0/charge"]


def test_a_worker_that_stops_waits_for_its_calls(app: fanin.App) -> None:
    receiver = Receiver(lambda *_: "stall", honours_keys=False)
    handled(app, receiver, "at_most_once")

    @app.task
    def order(n: int) -> None:
        fanin.current().effect("mail", Mail("a"))

    job = app.map(order, [1])
    with working(app, grace=90.0) as worker:
        assert receiver.stalled.wait(90)
        worker.stop()
        until(lambda: worker._performer is not None and worker._performer._closing.is_set(), "the worker closes")
        receiver.go.set()
        worker.join()
    assert states(job) == ["done"]


def test_two_workers_never_call_one_effect_at_once(app: fanin.App) -> None:
    receiver = Receiver(honours_keys=False)
    handled(app, receiver, "at_most_once")

    @app.task
    def order(n: int) -> None:
        fanin.current().effect("mail", Mail("a"))

    job = app.map(order, range(40))
    with working(app), working(app), working(app):
        until(lambda: states(job) == ["done"] * 40, "all are done")
    assert receiver.calls == {f"{job.id}/{n}/mail": 1 for n in range(40)}


def test_what_a_handler_raises_never_ends_the_loop(app: fanin.App) -> None:
    class Unprintable(BaseException):
        def __str__(self) -> str:
            raise RuntimeError

    @app.effect("mail", mode="idempotent", attempts=2, backoff=0.01)
    def send(request: int, key: str) -> None:
        raise (SystemExit(3), Unprintable(), KeyboardInterrupt())[request]

    @app.task
    def order(n: int) -> None:
        fanin.current().effect("mail", n)

    job = app.map(order, range(3))
    with working(app):
        until(lambda: states(job) == ["unknown"] * 3, "all were tried as often as they may be")
    assert {e.calls for e in job.effects()} == {2}


def test_the_handler_is_still_the_function(app: fanin.App) -> None:
    handler = EffectHandler(lambda request, key: (request, key), "mail", mode="idempotent")
    assert handler(1, "k") == (1, "k")
    assert repr(handler) == "<effect mail>"
