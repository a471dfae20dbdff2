"""What the statements of a job that is split do, and of one that may be too old to start."""

from __future__ import annotations

from typing import Any

from fanin.protocol.steps import Rows
from tests.model.graph_rows import AGED, Guards, Part
from tests.model.world import View


class SplitRules(Guards):
    """The statements of the room ``split``, and those of an age. Every age is over; a claim minds none, as one by a
    worker of an older version."""

    def submit_tree_size(self, *_: Any) -> Rows:
        return [(0,)]

    def split_create_batches(self, view: View, v: dict[str, Any], rows: Any) -> Rows:
        for idx, nested_id in rows:
            view.insert(("part", v["job_id"], idx), Part(nested=None if "split.nested" in self.missing else nested_id))
        return []

    def close_start_in_time(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        part: Any = view.get(("part", v["job_id"], 0))
        job: Any = view.get(("job", v["job_id"]))
        if part.attempt == 0:
            return []
        view.put(("job", v["job_id"]), job._replace(stale=None))
        return [(1,)]

    def close_lock_unstarted(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        key = ("part", v["job_id"], 0)
        part: Any = view.get(key)
        if not self.holds("age.unstarted", part.attempt == 0):
            return []
        self._lock(view, key, "age.lock")
        return [(0,)]

    def close_stale(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        job: Any = view.get(("job", v["job_id"]))
        stands = job.stale is not None and job.stale != AGED
        return [(job.stale or "skip",)] if self.holds("age.once", stands) else []

    def lease_claim_parts(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        for key in view.keys("part"):
            row: Any = view.get(key)
            _, stripe = self._stripe(view, key[1])
            if not row.ready or key in view.others or stripe is None or stripe.closed:
                continue
            view.put(key, row._replace(status="running", ready=False, attempt=row.attempt + 1, claim=v["claim_id"]))
            return [(key[1], key[2], "t", row.attempt + 1, row.allowed, "1", None, 0)]
        return []

    def lease_lost_before(self, *_: Any) -> Rows:
        return []
