"""A worker that holds an overtaken and the present attempt of one part, as after a jump of the database's clock."""

from __future__ import annotations

import time

import pytest

import fanin
from fanin.domain import identity
from fanin.protocol import lease
from fanin.runtime.executors import Running
from fanin.runtime.heart import Heart


def test_the_heart_stops_the_overtaken_one_alone(app: fanin.App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fanin.runtime.heart.RENEW_SHARE", 0.0)

    @app.task
    def work(number: int) -> int:
        return number

    app.map(work, [1])

    def claim(seconds: float) -> Running:
        (claim,) = app.store.run(
            lambda: lease.claim(0, "default", {work.name: seconds}, 1, identity.new_claim_id(), "w")
        )
        return Running(claim, work, app.store, time.monotonic())

    old = claim(-1.0)
    app.store.run(lambda: lease.wake(0))
    new = claim(60.0)
    stopped: list[Running] = []
    heart = Heart(app.store, lambda: [old, new], lambda running, _: stopped.append(running), stopped.append)
    heart.beat()
    heart.close()
    assert stopped == [old]
    assert new.renewed > new.claimed
