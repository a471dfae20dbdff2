"""The loop of a worker that calls effects, at the moments that its threads can meet."""

from __future__ import annotations

import threading

import fanin
from fanin.runtime.performer import Performer


def test_a_close_just_before_the_loop_forgets_its_news_is_not_slept_over(app: fanin.App) -> None:
    performer = Performer(app.store, {}, "w")
    waits: list[float | None] = []

    class News(threading.Event):
        def clear(self) -> None:
            performer._closing.set()  # what `close` does, at the worst of moments
            self.set()
            super().clear()

        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout)
            return super().wait(0)

    performer._news = News()
    performer.start()
    performer._thread.join(90)
    assert not performer._thread.is_alive()
    assert waits == []
