"""What the statements of a purge do to the jobs of a flow. All of its events have left."""

from __future__ import annotations

from typing import Any

from fanin.domain.states import JOB_ENDED
from fanin.protocol.steps import Rows
from tests.model.graph_rows import FLOW, Guards
from tests.model.world import Key, View

DONE = ("completed", "failed", "cancelled", "compensated")


class PurgeRules(Guards):
    """The statements of the room ``purge``."""

    def purge_jobs_of_flow(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        rows: Any = [view.get(key) for key in view.keys("step")]
        return [(row.job_id, row.undo_job_id) for row in rows]

    def purge_children(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        rows: Any = [(key[1], view.get(key)) for key in view.keys("job")]
        return [(job_id,) for job_id, row in rows if row.waiter is not None and row.waiter[0] in v["jobs"]]

    def _of(self, view: View, kind: str, jobs: list[str]) -> list[Key]:
        return [key for key in view.keys(kind) if key[1] in jobs]

    def purge_lock_tree_stripes(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        found = self._of(view, "stripe", v["jobs"])
        for key in found:
            self._lock(view, key, "purge.lock")
        return [(key[1], 0) for key in found]

    def purge_lock_flow(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        if view.get(("flow",)) is None:
            return []
        self._lock(view, ("flow",), "purge.flow")
        return [(v["flow_id"],)]

    def purge_assess(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        jobs: Any = [view.get(key) for key in self._of(view, "job", v["jobs"])]
        stripes: Any = [view.get(key) for key in self._of(view, "stripe", v["jobs"])]
        ended = sum(self.holds("purge.live", row.status in JOB_ENDED) for row in jobs)
        live = 0 if "purge.live" in self.missing else sum(row.left for row in stripes)
        events = len(self._events(view, v["jobs"]))
        return [(ended, 0, sum(sum(row[:4]) for row in stripes), live, events, 0, 0, 0, 0, 0, 0)]

    def _events(self, view: View, jobs: list[str]) -> list[Key]:
        return [key for key in view.keys("event") if key[1].split("/")[1] in jobs]

    def purge_standing_flow(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        row: Any = view.get(("flow",))
        return [] if row is None else [(row.status, True)]

    def _remove(self, view: View, keys: list[Key]) -> Rows:
        for key in keys:
            view.remove(key)
        return [(key[1] if len(key) > 1 else None,) for key in keys]

    def purge_remove_stripes(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        return self._remove(view, self._of(view, "stripe", v["jobs"]))

    def purge_remove_jobs(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        jobs: Any = {key: view.get(key) for key in self._of(view, "job", v["jobs"])}
        self._remove(view, list(jobs))
        return [(key[1], FLOW if row.waiter is None else row.waiter[0]) for key, row in jobs.items()]

    def purge_remove_steps(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        return self._remove(view, view.keys("step"))

    def purge_remove_flow(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        row: Any = view.get(("flow",))
        return self._remove(view, [("flow",)] if self.holds("purge.status", row.status in DONE) else [])

    def purge_remove_log(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        return []

    def purge_remove_events(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        return self._remove(view, self._events(view, v["jobs"]))

    def purge_leave(self, view: View, v: dict[str, Any], rows: Any) -> Rows:
        for job_id, parent_id in rows:
            view.insert(("leftover", job_id), (parent_id,))
        return []
