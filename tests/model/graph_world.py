"""A small world of several jobs: parts that wait for nested jobs, and the steps of one flow with what undoes them.

As in `tests.model.world`, the control flow is the product's own; what each statement does to the rows is written here.
Leases do not run out in this world, and each job has one counter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fanin.domain import policy
from fanin.domain.states import JOB_ENDED
from fanin.protocol.steps import Rows, Statement
from tests.model.effect_world import EffectRules
from tests.model.flow_world import FlowRules
from tests.model.graph_rows import AGED, FLOW, LIVE, OVER, Job, Part, Stripe
from tests.model.growth_world import GrowthRules
from tests.model.purge_world import PurgeRules
from tests.model.split_world import SplitRules
from tests.model.world import Broken, Key, View


class GraphRules(FlowRules, GrowthRules, SplitRules, PurgeRules, EffectRules):
    """What each statement does."""

    def do(self, statement: Statement, view: View) -> Rows:
        name = f"{statement.query.room}_{statement.query.name}"
        act: Callable[[View, dict[str, Any], Any], Rows] = getattr(self, name)
        return act(view, statement.values, statement.rows)

    # Settling and counting.

    def _token(self, view: View, job_id: str, idx: int, attempt: int, claim: str, guard: str) -> tuple[Key, Any] | None:
        key = ("part", job_id, idx)
        row: Any = view.get(key)
        token = row is not None and row.status == "running" and (row.attempt, row.claim) == (attempt, claim)
        return (key, row) if token and self.holds(guard, not row.waiting) else None

    def finish_settle_parts(self, view: View, v: dict[str, Any], rows: Any) -> Rows:
        settled = []
        for job_id, idx, attempt, claim, verb, result, _ in rows:
            found = self._token(view, job_id, idx, attempt, claim, "settle.waiting")
            if found is None:
                continue
            key, row = found
            status = {"succeed": "succeeded", "fail": "failed", "release": "pending"}[verb]
            kept = result if verb == "succeed" else None
            view.put(key, row._replace(status=status, ready=status == "pending", result=kept, waiting=False))
            settled.append((job_id, idx, attempt, claim, 0, status))
        return settled

    def finish_look_at_part(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        row: Any = view.get(("part", v["job_id"], v["idx"]))
        return [] if row is None else [(row.status, row.attempt, row.claim, row.result == v["result"], row.waiting)]

    def skip_undoes(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        steps: Any = [view.get(key) for key in view.keys("step")]
        return [(1,) for step in steps if step.undo_job_id == v["job_id"]]

    def skip_skip_part(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        key = ("part", v["job_id"], v["idx"])
        row: Any = view.get(key)
        if row.status not in LIVE:
            return []
        status = "failed" if v["failed"] else "succeeded"
        kept = row._replace(
            status=status, ready=False, attempt=row.attempt + 1, claim=v["claim_id"], result=v["result"], waiting=False
        )
        view.put(key, kept)
        return [(0, row.attempt + 1)]

    def skip_lock_part(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        key = ("part", v["job_id"], v["idx"])
        self._lock(view, key)
        row: Any = view.get(key)
        return [(row.status,)]

    def nest_pause_as_above(self, *_: Any) -> Rows:
        return []

    def counting_policy(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        row: Any = view.get(("job", v["job_id"]))
        return [(row.policy, False, None if "grow.width" in self.missing else row.width)]

    def _lock_stripe(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        view.lock(("stripe", v["job_id"]))
        return [(0,)]

    counting_lock_stripes = close_lock_all_stripes = _lock_stripe

    def counting_count_down(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        key, row = self._stripe(view, v["job_id"])
        if not self.holds("count.closed", not row.closed):
            return []
        left = row.left - v["succeeded"] - v["failed"]
        if left < 0:
            raise Broken("remaining would be negative")
        view.put(key, row._replace(left=left, ok=row.ok + v["succeeded"], failed=row.failed + v["failed"]))
        return [(left, True)]

    def counting_judged(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        return [(False,)]

    def counting_count_stripes(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        key = ("job", v["job_id"])
        row: Any = view.get(key)
        if row.status != "running" or row.open < v["emptied"]:
            return []
        view.put(key, row._replace(open=row.open - v["emptied"]))
        return [(row.open - v["emptied"],)]

    def counting_sums(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        _, row = self._stripe(view, v["job_id"])
        return [(sum(row[:4]), row.left, row.ok, row.failed, 1)]

    def counting_close_stripes(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        key, row = self._stripe(view, v["job_id"])
        view.put(key, row._replace(closed=True))
        return []

    def ending_end_job(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        key = ("job", v["job_id"])
        row: Any = view.get(key)
        if row.status != "running":
            return []
        stale = AGED if row.stale and v["reason"] == policy.too_old("skip").reason else None
        view.put(key, row._replace(status=v["status"], open=0, stale=stale))
        waiter = row.waiter or (None, None)
        flow = None if row.step is None else FLOW
        return [(row.run, row.run, None, None, 0, None, "t", None, *waiter, flow, row.step)]

    def _announce(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        view.insert(("event", v["event_key"]), (1,))
        return []

    ending_announce = advance_announce = _announce

    def born_create(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        view.insert(("job", v["id"]), Job(step=v["flow_step"]))
        return []

    def born_create_stripe(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        view.insert(("stripe", v["id"]), Stripe())
        return []

    def born_create_part(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        view.insert(("part", v["id"], 0), Part(told=v["payload"]))
        return []

    def _nothing(self, *_: Any) -> Rows:
        return []

    born_ring = redrive_ring = submit_ring = finish_log_attempts = waiting_log_failed = _nothing
    deeds_write_down = deeds_written = submit_rows_left = _nothing

    # Closing and running again.

    def close_standing(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        view.lock(("job", v["job_id"]))
        row: Any = view.get(("job", v["job_id"]))
        return [] if row is None else [(row.status, row.policy, True)]

    def close_lock_closed_stripe(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        key, row = self._stripe(view, v["job_id"])
        if row is None or not row.closed:
            return []
        view.lock(key)
        return [(row.left,)]

    def close_sweep_parts(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        swept = []
        for key in view.keys("part"):
            row: Any = view.get(key)
            if key[1] == v["job_id"] and row.status in LIVE and key not in view.others:
                view.put(key, row._replace(status="abandoned", ready=False, waiting=False))
                swept.append((key[2],))
        return swept

    def close_count_swept(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        key, row = self._stripe(view, v["job_id"])
        view.put(key, row._replace(left=row.left - v["swept"], abandoned=row.abandoned + v["swept"]))
        return [(row.left - v["swept"],)]

    def _ended(self, view: View, job_id: str) -> list[tuple[Key, Any]]:
        rows: Any = [(key, view.get(key)) for key in view.keys("part") if key[1] == job_id]
        return [(key, row) for key, row in rows if row.status in ("failed", "abandoned")]

    def redrive_lock_ended_parts(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        found = self._ended(view, v["job_id"])
        for key, _row in found:
            view.lock(key)
        return [(key[2], 0, row.status) for key, row in found]

    def redrive_lock_stripes(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        key, _ = self._stripe(view, v["job_id"])
        view.lock(key)
        row: Any = view.get(key)
        return [] if row is None else [(0, row.left, row.closed)]

    def redrive_standing(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        view.lock(("job", v["job_id"]))
        row: Any = view.get(("job", v["job_id"]))
        if row is None:
            return []
        return [(row.status, row.run, "q", row.waiter and row.waiter[0], None if row.step is None else FLOW)]

    def redrive_count_ended(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        return [(len(self._ended(view, v["job_id"])),)]

    def redrive_revive_parts(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        found = self._ended(view, v["job_id"])
        for key, row in found:
            view.put(key, row._replace(status="pending", ready=True, allowed=row.attempt + v["attempts"]))
        return [(key[2], 0) for key, _row in found]

    def redrive_lock_only_part(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        key = ("part", v["job_id"], 0)
        self._no_wait(view, key)
        row: Any = view.get(key)
        return [(row.status, row.told in (v["told"], v["anew"]))]

    def redrive_lock_only_stripe(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        self._no_wait(view, ("stripe", v["job_id"]))
        return [(0,)]

    def redrive_tell_part(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        key = ("part", v["job_id"], 0)
        row: Any = view.get(key)
        told = v["payload"] if "tell.payload" not in self.missing else row.told
        view.put(
            key,
            row._replace(status="pending", ready=True, waiting=False, allowed=row.attempt + v["attempts"], told=told),
        )
        return [(0,)]

    def redrive_leave_behind(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        return []  # no step of this world maps

    def redrive_reopen_stripe(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        key, row = self._stripe(view, v["job_id"])
        back = v["failed"] + v["abandoned"]
        fresh = Stripe(row.left + back, row.ok, row.failed - v["failed"], row.abandoned - v["abandoned"], False)
        view.put(key, fresh)
        return [(fresh.left,)]

    def redrive_created(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        return [(sum(self._stripe(view, v["job_id"])[1][:4]),)]

    def redrive_reopen_job(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        key = ("job", v["job_id"])
        row: Any = view.get(key)
        view.put(key, row._replace(status="running", run=row.run + 1, open=v["open_stripes"], stale=None))
        return [(row.run + 1,)]

    # Waiting for a nested job.

    def submit_create_job(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        if ("job", v["id"]) in view.others:
            view.lock(("job", v["id"]))
        if view.get(("job", v["id"])) is not None:
            return []
        waiter = None if v["waiter_id"] is None else (v["waiter_id"], v["waiter_idx"])
        view.insert(("job", v["id"]), Job(waiter=waiter))
        return [(0,)]

    def submit_find_job(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        row: Any = view.get(("job", v["id"]))
        return [] if row is None else [(v["id"], "hash", row.status, 1)]

    def submit_create_stripes(self, view: View, v: dict[str, Any], rows: Any) -> Rows:
        for job_id, _, count, *_more in rows:
            view.insert(("stripe", job_id), Stripe(count))
        return []

    def submit_create_parts(self, view: View, v: dict[str, Any], rows: Any) -> Rows:
        for idx in range(len(v["payloads"])):
            view.insert(("part", v["job_id"], idx), Part())
        return []

    def nest_standing(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        row: Any = view.get(("job", v["id"]))
        return [] if row is None else [(row.status, None, row.run, None, 9)]

    def nest_lock_live(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        key = ("job", v["id"])
        row: Any = view.get(key)
        if row is None or row.status in JOB_ENDED:
            return []
        self._lock(view, key, "nest.lock")
        return [(v["id"],)]

    def nest_take_held(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        found = self._token(view, v["job_id"], v["idx"], v["attempt"], v["claim_id"], "")
        if found is None:
            return []
        self._no_wait(view, found[0], "nest.busy")
        return [(v["idx"],)]

    def nest_begin_to_wait(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        found = self._token(view, v["job_id"], v["idx"], v["attempt"], v["claim_id"], "")
        if found is None:
            return []
        view.put(found[0], found[1]._replace(waiting=True, ready=False, nested=v["nested_id"]))
        return [(v["idx"],)]

    def nest_look_at_waiter(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        row: Any = view.get(("part", v["job_id"], v["idx"]))
        return [(row.status, row.attempt, row.claim, row.waiting)]

    def nest_has_ended(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        row: Any = view.get(("part", v["job_id"], v["idx"]))
        return [(1,)] if row.nested is not None and row.status in OVER else []

    def nest_live_nested(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        jobs: Any = [(key[1], view.get(key)) for key in view.keys("job")]
        mine = (v["job_id"], v["idx"])
        return [(job_id,) for job_id, row in jobs if row.waiter == mine and row.status not in JOB_ENDED]

    def nest_forget_nested(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        key = ("part", v["job_id"], v["idx"])
        row: Any = view.get(key)
        if row.nested is None or row.status not in OVER:
            return []
        view.put(key, row._replace(nested=None))
        return [(v["idx"],)]

    def waiting_take_waiting(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        key = ("part", v["job_id"], v["idx"])
        row: Any = view.get(key)
        if not self.holds("rise.waiting", row.waiting):
            return []
        self._no_wait(view, key)
        return [(0, False)]

    def waiting_lock_open_stripe(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        key, row = self._stripe(view, v["job_id"])
        if not self.holds("rise.closed", not row.closed):
            return []
        view.lock(key)
        return [(0,)]

    def waiting_settle_waiting(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        key = ("part", v["job_id"], v["idx"])
        row: Any = view.get(key)
        view.put(key, row._replace(status=v["status"], result=v["result"], waiting=False, nested=None))
        return [(row.attempt,)]

    def waiting_let_go(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        key = ("part", v["job_id"], v["idx"])
        row: Any = view.get(key)
        if "rise.let_go" not in self.missing:
            view.put(key, row._replace(status="pending", ready=True, waiting=False, allowed=row.allowed + 1))
        return [(v["idx"],)]
