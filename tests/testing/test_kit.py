"""The barrier, the clock and the receivers of the testing kit."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from fanin.domain.errors import BadOption
from fanin.protocol import lease
from fanin.stores import open_store
from fanin.stores.base import Store
from fanin.stores.sqlite import SqliteStore
from fanin.testing.barrier import FileBarrier
from fanin.testing.clock import Clock, follow
from fanin.testing.fakes import EffectReceiver, FakeSink
from fanin.testing.state import select
from tests.protocol.helpers import claim, make

ARRIVE = "import sys; from fanin.testing.barrier import FileBarrier; print(FileBarrier(sys.argv[1], 3).wait(90))"


def now(store: Store) -> float:
    return float(select(store, "SELECT fanin.clock() AS now")[0]["now"])


# The barrier.


def test_processes_wait_for_each_other_and_the_barrier_serves_again(tmp_path: Path) -> None:
    path = str(tmp_path / "barrier")
    for _ in range(2):
        others = [
            subprocess.Popen([sys.executable, "-c", ARRIVE, path], stdout=subprocess.PIPE, text=True) for _ in range(2)
        ]
        places = [FileBarrier(path, 3).wait(90)] + [int(other.communicate(timeout=90)[0]) for other in others]
        assert sorted(places) == [0, 1, 2]


def test_a_barrier_that_is_not_full_says_how_many_are_missing(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError, match="1 of 2 did not come"):
        FileBarrier(str(tmp_path / "barrier"), 2).wait(0.01)


# The clock.


def test_a_lease_ends_when_the_clock_is_moved_past_it(store: Store) -> None:
    make(store, 1)
    assert len(claim(store, seconds=600)) == 1
    clock = Clock(store)
    clock.advance(599)
    assert store.run(lambda: lease.wake(0)).queues == []
    clock.advance(601)
    assert store.run(lambda: lease.wake(0)).queues == ["q"]
    clock.reset()
    assert abs(now(store) - time.time()) < 300


def test_a_frozen_clock_stands(store: Store) -> None:
    clock = Clock(store)
    clock.freeze(1_000_000.5)
    assert now(store) == now(store) == 1_000_000.5
    clock.reset()


def test_stores_that_follow_a_file_see_the_clock_move(sqlite_url: str, tmp_path: Path) -> None:
    file = str(tmp_path / "clock")
    ours, theirs = open_store(sqlite_url), open_store(sqlite_url)
    assert isinstance(theirs, SqliteStore)
    follow(theirs, file)
    clock = Clock(ours, file)
    clock.advance(3600)
    assert now(theirs) - time.time() > 3500
    clock.freeze(5.0)
    assert now(theirs) == now(ours) == 5.0
    (tmp_path / "clock").write_text("nonsense")
    with pytest.raises(BadOption, match="does not hold a clock"):
        theirs.clock()
    ours.close()
    theirs.close()


# The receivers.


def post(url: str, key: str) -> int:
    request = urllib.request.Request(url, b"{}", {"Idempotency-Key": key}, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=90) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as problem:
        return problem.code


def test_a_sink_writes_down_every_key(tmp_path: Path) -> None:
    with FakeSink(str(tmp_path / "log")) as sink:
        assert [post(sink.url, "a"), post(sink.url, "a"), post(sink.url, "b")] == [200, 200, 200]
        assert sink.keys == ["a", "a", "b"]
        assert sink.applied["a"] == 2
    assert (tmp_path / "log").read_text().count('"accepted": true') == 3


def test_a_refused_call_has_no_effect() -> None:
    with FakeSink() as sink:
        sink.refuse(1, 503)
        assert [post(sink.url, "a"), post(sink.url, "a")] == [503, 200]
        assert sink.applied["a"] == 1


def test_a_receiver_whose_answer_is_lost_knows_the_key_afterwards() -> None:
    with EffectReceiver() as receiver:
        receiver.lose_answers(1)
        with pytest.raises(OSError, match="closed"):
            post(receiver.url, "pay/1")
        assert post(receiver.url, "pay/1") == 200
        assert receiver.applied["pay/1"] == 1
        assert len(receiver.calls) == 2
        assert urllib.request.urlopen(receiver.url + "pay/1", timeout=90).status == 200
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(receiver.url + "pay/2", timeout=90)


def test_a_receiver_without_keys_does_it_twice() -> None:
    with EffectReceiver(honours_keys=False) as receiver:
        assert [post(receiver.url, "a"), post(receiver.url, "a")] == [200, 200]
        assert receiver.applied["a"] == 2


def test_a_stalled_receiver_answers_when_it_may_go_on() -> None:
    with EffectReceiver() as receiver:
        receiver.stall()
        answers: list[int] = []
        caller = threading.Thread(target=lambda: answers.append(post(receiver.url, "a")))
        caller.start()
        assert receiver.applied["a"] == 0
        receiver.go_on()
        caller.join(90)
        assert answers == [200]
