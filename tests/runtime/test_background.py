"""What runs beside the handlers goes on whatever a step meets, and ends when it is told to."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

import fanin
from fanin.domain.errors import StoreUnreachable
from fanin.runtime import sweeper
from fanin.runtime.background import Background

HOUR = 3600.0


@pytest.mark.parametrize("problem", [StoreUnreachable("away"), ValueError("a fault")], ids=repr)
def test_a_step_that_fails_is_tried_again(problem: Exception, caplog: pytest.LogCaptureFixture) -> None:
    steps: list[int] = []
    again = threading.Event()

    def step() -> float:
        steps.append(len(steps))
        if len(steps) == 1:
            raise problem
        again.set()
        return HOUR

    background = Background("upkeep", step, every=0.001, first=0.0)
    background.start()
    assert again.wait(90)
    background.close()
    assert steps == [0, 1], "the second asked for an hour"
    assert any("trying again" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("answer", [lambda: None, lambda: 0.0], ids=["none", "at once"])
def test_it_goes_on_after_what_a_step_asks_for_or_as_always(answer: Callable[[], float | None]) -> None:
    steps = threading.Semaphore(0)

    def step() -> float | None:
        steps.release()
        return answer()

    background = Background("watch", step, every=0.001, first=0.0)
    background.start()
    assert all(steps.acquire(timeout=90) for _ in range(3))
    background.close()
    assert not any(thread.name == "fanin-watch" for thread in threading.enumerate())


def test_a_sweep_without_outputs_writes_nothing(app: fanin.App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(app.store), "run", lambda *_: pytest.fail("idle workers would all write"))
    assert sweeper.sweep(app.store) == sweeper.Swept()


def test_it_can_be_stirred_and_ended_in_a_long_pause() -> None:
    steps = threading.Semaphore(0)

    def step() -> float:
        steps.release()
        return HOUR

    background = Background("upkeep", step, every=0.001, first=HOUR)
    background.start()
    for _ in range(2):
        background.stir()
        assert steps.acquire(timeout=90)
    background.close()
    assert not any(thread.name == "fanin-upkeep" for thread in threading.enumerate())


@pytest.mark.parametrize("stirred", [False, True], ids=["in its pause", "on its way"])
def test_it_ends_at_once(stirred: bool) -> None:
    background = Background("upkeep", lambda: HOUR, every=HOUR, first=HOUR)
    background.start()
    if stirred:
        background.stir()
    background.close()
    assert not any(thread.name == "fanin-upkeep" for thread in threading.enumerate())
