"""Kind P: deadlines."""

from __future__ import annotations

import pytest

import fanin
from tests.runtime.working import working


def test_F107_a_deadline_of_zero_fires_at_once_and_one_before_now_is_refused(app: fanin.App) -> None:
    """a deadline is a duration: zero is the only one that has passed already"""

    @app.task
    def work(x: int) -> int:
        return x

    job = app.map(work, range(3), give_up_after=0, delay=3600)
    with working(app):
        job.wait(90)
    assert (job.status, job.row().outcome) == ("failed", "gave_up")
    assert (job.account()["events"], job.account()["attempts"]) == (1, 0)
    with pytest.raises(fanin.BadOption, match="zero or more"):
        app.map(work, [1], give_up_after=-1)
    assert len(app.jobs()) == 1
