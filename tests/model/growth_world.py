"""What the statements of a growing job and of a schedule do."""

from __future__ import annotations

from typing import Any

from fanin.domain.states import JOB_ENDED
from fanin.protocol.steps import Rows
from tests.model.graph_rows import Guards, Part
from tests.model.world import Broken, View


class GrowthRules(Guards):
    """The statements of the rooms ``growth`` and ``schedule``. Keys are the payloads; the width is 9."""

    def growth_hold_part(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        key = ("part", v["job_id"], v["idx"])
        row: Any = view.get(key)
        if row.status != "running" or (row.attempt, row.claim) != (v["attempt"], v["claim_id"]) or row.waiting:
            return []
        view.lock(key)
        return [(0,)]

    def growth_lock_stripes(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        key, row = self._stripe(view, v["job_id"])
        self._lock(view, key, "spawn.lock")
        return [(0, True, row.closed and "spawn.closed" not in self.missing)]

    def growth_growing(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        return [("t", "q", 0, 9, 0, 1, 9, self._planned(view, v["job_id"]))]

    def _planned(self, view: View, job_id: str) -> int:
        return sum(1 for key in view.keys("part") if key[1] == job_id and key[2] < 2)

    def growth_totals(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        _, row = self._stripe(view, v["job_id"])
        created = sum(row[:4])
        return [(created, created - self._planned(view, v["job_id"]))]

    def growth_first_turn(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        return [(0,)]

    def growth_add_keys(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        fresh = []
        for one in v["keys"]:
            key = ("key", v["job_id"], one)
            if key in view.others:
                view.lock(key)
            if view.get(key) is None or "spawn.seen" in self.missing:
                view.put(key, (1,))
                fresh.append((one,))
        return fresh

    def growth_add_parts(self, view: View, v: dict[str, Any], rows: Any) -> Rows:
        for idx, *_more in rows:
            view.insert(("part", v["job_id"], idx), Part())
        return []

    def growth_count_spawned(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        key, row = self._stripe(view, v["job_id"])
        if row.closed and "spawn.closed" not in self.missing:
            return []
        view.put(key, row._replace(left=row.left + v["fresh"]))
        return [(row.left + v["fresh"], True)]

    def growth_ring(self, *_: Any) -> Rows:
        return []

    # The schedule: its row is (mark, job, paused at, asked at); its slots come at 10, 20 and so on, and have come.

    def schedule_lock(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        self._lock(view, ("schedule",), "fire.lock")
        row: Any = view.get(("schedule",))
        return [(*row, 100.0)]

    def schedule_latest_job(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        row: Any = view.get(("job", v["job_id"]))
        return [(int(row is not None and row.status not in JOB_ENDED), None)]

    def schedule_advance(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        mark, job_id, paused, asked = self._schedule(view)
        if not self.holds("fire.seen", mark == v["seen"]) or not self.holds("fire.paused", paused is None):
            return []
        view.put(("schedule",), (v["slot"], v["job_id"] or job_id, paused, asked))
        return [(1,)]

    def schedule_answer(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        mark, job_id, paused, asked = self._schedule(view)
        if asked != v["slot"]:
            return []
        view.put(("schedule",), (mark, v["job_id"] or job_id, paused, None))
        return [(1,)]

    def _schedule(self, view: View) -> Any:
        return view.get(("schedule",))

    def schedule_log_firing(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        view.insert(("firing", v["slot"], v["by_hand"]), (v["what"], v["job_id"]))
        return []

    def schedule_oldest_kept(self, *_: Any) -> Rows:
        return []

    def schedule_pause(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        mark, job_id, paused, asked = self._schedule(view)
        if paused is not None:
            return []
        view.put(("schedule",), (mark, job_id, 1.0, asked))
        return [(1,)]

    def read_job(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        if view.get(("job", v["id"])) is not None:
            raise Broken("a job stands in the place of a slot that is decided")
        return []
