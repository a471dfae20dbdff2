"""What follows a job: the task that receives its results, and the options of that one call."""

from __future__ import annotations

from typing import Any

import msgspec

from fanin.domain import limits
from fanin.domain.durations import Duration, seconds
from fanin.domain.model import Spec
from fanin.domain.policy import make_stale
from fanin.runtime.fits import check_successor
from fanin.runtime.task import Task, check_attempts, check_name, check_priority, check_task

SUCCESSOR_PRIORITY = 10
"""So much higher than the parts before it: it never waits behind others of their kind."""


class Successor:
    """For ``then=``, where the task's own options are not the ones that are meant.

    attempts, queue, priority: default, the task's. give_up_after: end it so long after the job before it has ended, if
    it has not ended by itself. stale_after, stale: if no worker has claimed it so long after that, it is too old to
    start: ``"skip"`` cancels it, ``"fail"`` fails it (default: it is run, however old). Raises `BadOption`,
    `UnknownTask`.
    """

    def __init__(
        self,
        task: Task[..., Any],
        *,
        attempts: int | None = None,
        queue: str | None = None,
        priority: int | None = None,
        give_up_after: Duration | None = None,
        stale_after: Duration | None = None,
        stale: str = "run",
    ) -> None:
        check_task(task)
        self.task = task
        self.attempts = task.attempts if attempts is None else check_attempts(attempts)
        self.queue = task.queue if queue is None else check_name(queue, "queue")
        self.priority = task.priority if priority is None else check_priority(priority)
        self.give_up_after = None if give_up_after is None else seconds(give_up_after, "give_up_after")
        self.stale_after, self.stale = make_stale(stale_after, stale)

    def __repr__(self) -> str:
        return f"<successor {self.task.name}>"


Then = Task[..., Any] | Successor
"""What ``then=`` takes."""


def successor_of(then: Then) -> Successor:
    """A task with its own options, or what is one already. Raises `UnknownTask`."""
    return then if isinstance(then, Successor) else Successor(then)


def spec_of(then: Then, before: Task[..., Any], above: int) -> str:
    """As it is kept with a job of ``before`` whose parts have the priority ``above``. Raises `BadOption` if the task
    cannot join their results."""
    said = successor_of(then)
    check_successor(said.task, before)
    spec = Spec(
        task=said.task.name, queue=said.queue, attempts=said.attempts,
        priority=min(max(above, said.priority) + SUCCESSOR_PRIORITY, limits.PRIORITY_MAX),
        give_up_after=said.give_up_after, stale_after=said.stale_after, stale=said.stale,
    )  # fmt: skip
    return msgspec.json.encode(spec).decode()
