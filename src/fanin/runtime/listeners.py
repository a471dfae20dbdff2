"""The tasks that listen to events: what the end of a job or a flow starts, beside its successor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from fanin.domain import identity, limits
from fanin.domain.errors import BadOption, shown
from fanin.domain.events import FLOW_SAMPLE, LISTENED, SAMPLE
from fanin.domain.model import JobRow, Spec
from fanin.runtime.task import Task


class Listeners:
    """Those of one application, in the order in which they were registered."""

    def __init__(self) -> None:
        self._of_jobs: list[tuple[Task[..., Any], frozenset[str]]] = []
        self._of_flows: list[tuple[Task[..., Any], str]] = []

    def check(self, event: str, of: Sequence[Task[..., Any]]) -> None:
        """Raise `BadOption` if nothing can listen to this, or there are too many."""
        if event not in LISTENED:
            raise BadOption(f"{shown(event)} is no event that can be listened to: there is {', '.join(LISTENED)}")
        if event != "job.finished" and of:
            raise BadOption(f"of={shown(of)}: a listener to {event} hears all flows; its argument names the flow")
        if len(self._of_jobs) + len(self._of_flows) >= limits.JOB_LISTENERS:
            raise BadOption(f"{limits.JOB_LISTENERS} listeners are registered, which is the limit: let one do more")

    def add(self, event: str, of: Sequence[Task[..., Any]], task: Task[..., Any]) -> None:
        """From now on it listens."""
        if event == "job.finished":
            self._of_jobs.append((task, frozenset(one.name for one in of)))
        else:
            self._of_flows.append((task, event))

    def to_job(self, task: str, above: JobRow | None) -> str | None:
        """What listens to a job of this task, as its row keeps it; nothing, if a listener asks for it."""
        specs = [_spec(listener) for listener, of in self._of_jobs if not of or task in of]
        return msgspec.json.encode(specs).decode() if specs and not _listens(above) else None

    def to_flow(self, above: JobRow | None) -> str | None:
        """The same of a flow, by event."""
        heard: dict[str, list[Spec]] = {}
        for listener, event in self._of_flows:
            heard.setdefault(event, []).append(_spec(listener))
        return msgspec.json.encode(heard).decode() if heard and not _listens(above) else None


def sample(event: str) -> str:
    """A payload, to see whether a listener could read one."""
    return SAMPLE if event == "job.finished" else FLOW_SAMPLE


def _listens(above: JobRow | None) -> bool:
    return above is not None and (above.step or "").startswith(identity.LISTENER)


def _spec(listener: Task[..., Any]) -> Spec:
    return Spec(
        task=listener.name, step=identity.LISTENER + listener.name, queue=listener.queue, attempts=listener.attempts,
        priority=listener.priority,
    )  # fmt: skip
