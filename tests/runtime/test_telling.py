"""Events that a job is asked for, from the call to the outbox."""

from __future__ import annotations

import pytest

import fanin
from fanin.runtime import upkeep
from fanin.testing.state import select


def kinds(app: fanin.App, job: fanin.Job) -> list[str]:
    query = f"SELECT type FROM fanin.outbox WHERE job_id = '{job.id}' ORDER BY seq"
    return [str(row["type"]) for row in select(app.store, query)]


def test_a_job_tells_what_it_is_asked_to(app: fanin.App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fanin.domain.limits.PROGRESS_SECONDS_MIN", 0.0)

    @app.task(attempts=1)
    def work(number: int) -> int:
        return 1 // number

    job = app.map(work, [1, 0, 2], tolerate=1, events=fanin.Events(failures=True, progress=1e-9))
    job.skip(0, result=1)
    upkeep.once(app.store, app.store.bucket(job.id))
    app.run_worker(until_idle=True)
    found = kinds(app, job)
    assert found[0] == "job.progress"
    assert found[-1] == "job.finished"
    assert found.count("part.failed") == 1
    plain = app.map(work, [0], tolerate=1)
    app.run_worker(until_idle=True)
    assert kinds(app, plain) == ["job.finished"]


@pytest.mark.parametrize("progress", [0, 0.5, "10ms", -1, "soon"])
def test_a_time_between_two_events_that_cannot_be_meant_is_refused(progress: object) -> None:
    with pytest.raises(fanin.BadOption, match="progress"):
        fanin.Events(progress=progress)  # type: ignore[arg-type]
