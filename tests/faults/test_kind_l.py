"""Kind L: values that cannot be stored, or are stored differently from how they came."""

from __future__ import annotations

from typing import Any

import pytest

import fanin
from fanin.domain.model import Verdict
from fanin.protocol import lease
from fanin.stores.base import Store
from fanin.testing.state import dump
from tests.protocol.helpers import Clock, claim, done, make, part, settle


def test_F082_a_nul_character_is_refused_or_comes_back_on_both_databases(app: fanin.App) -> None:
    """in a payload, in a key of a dict, in a result, and in the job's own texts: stored, or refused at once"""

    @app.task(attempts=5)
    def echo(x: object) -> object:
        return x

    values = ["a\x00b", {"k\x00": 1}, ["\x00"]]
    assert app.map(echo, values, run=True).result(90) == values
    refused: list[dict[str, Any]] = [{"key": "a\x00b"}, {"queue": "a\x00b"}]
    for options in refused:
        with pytest.raises(fanin.BadOption):
            app.map(echo, [1], **options)
    job = app.map(echo, [1], meta={"note": "a\x00b"})
    assert job.meta() == {"note": "a\x00b"}
    with pytest.raises(fanin.BadOption, match="reason"):
        job.cancel("a\x00b")
    assert job.cancel("enough")


def test_F086_a_second_result_for_a_finished_part(store: Store, clock: Clock) -> None:
    """the same again is no news; another one by the same attempt is a conflict, by a zombie it is lost"""
    job_id = make(store, 4, attempts=3)
    held = claim(store)
    assert settle(store, done(held[3], '{"a":1,"b":[1,2]}'))[0].verdict is Verdict.OK
    before = dump(store)
    assert settle(store, done(held[3], '{"a":1,"b":[1,2]}'))[0].verdict is Verdict.REPLAY
    assert settle(store, done(held[3], '{"a":2,"b":[1,2]}'))[0].verdict is Verdict.CONFLICT
    assert dump(store) == before
    clock.advance(61.0)
    store.run(lambda: lease.wake(0))
    later = {found.idx: found for found in claim(store)}
    settle(store, done(later[0], '"first"'))
    answer = settle(store, done(held[0], '"second"'))[0]
    assert (answer.verdict, answer.attempt) == (Verdict.LOST, 2)
    assert part(store, job_id, 0)["result"] == '"first"'
    assert part(store, job_id, 3)["result"] == '{"a":1,"b":[1,2]}'
