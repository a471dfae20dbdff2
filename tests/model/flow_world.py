"""What the statements of a flow do: its steps, what follows them, and what undoes them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from fanin.protocol.steps import Rows
from tests.model.graph_rows import FLOW, Guards
from tests.model.world import Key, View

SPEC = '{"spec":{"task":"t","step":"step","queue":"q","attempts":9},"call":"{}"}'


class FlowRules(Guards):
    """The statements of the rooms ``advance`` and ``flow``."""

    def _nothing(self, *_: Any) -> Rows:
        return []

    advance_counts = advance_notable = _nothing

    def _steps(self, view: View) -> Iterator[tuple[Key, Any]]:
        for key in view.keys("step"):
            yield key, view.get(key)

    def advance_lock_flow(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        self._lock(view, ("flow",), "flow.lock")
        row: Any = view.get(("flow",))
        if row is None:
            return []
        return [
            ("f", None, row.status, row.cause, None, row.run, row.fail_fast, "abandon", row.running, row.failures,
             row.ended, row.events, None)
        ]  # fmt: skip

    def advance_save_flow(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        row: Any = view.get(("flow",))
        if row.status != v["was"]:
            return []
        names = ("status", "cause", "running", "failures", "ended", "events")
        view.put(("flow",), row._replace(**{name: v[name] for name in names}))
        return [(1,)]

    def _move(self, view: View, n: int, condition: bool, **fields: Any) -> Any:
        row: Any = view.get(("step", n))
        if not condition:
            return None
        view.put(("step", n), row._replace(**fields))
        return row

    def advance_end_step(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        row: Any = view.get(("step", v["n"]))
        mine = row.status == "running" and row.job_id == v["job_id"]
        found = self._move(view, v["n"], mine, status=v["status"], ended_no=v["ended_no"])
        return [(json.dumps(found.leads_to), f"s{v['n']}")] if found else []

    def _undoes(self, view: View, v: dict[str, Any]) -> bool:
        row: Any = view.get(("step", v["n"]))
        return bool(row.status == "undoing" and row.undo_job_id == v["job_id"])

    def advance_undoing(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        row: Any = view.get(("step", v["n"]))
        return [(row.job_id,)] if self._undoes(view, v) else []

    def advance_incomplete(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        row: Any = view.get(("job", v["job_id"]))
        _, stripe = self._stripe(view, v["job_id"])
        fails = row.status != "completed" or stripe.failed > 0 or stripe.abandoned > 0 or stripe.left > 0
        return [(row.status,)] if fails else []

    def advance_end_undo(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        return [(f"s{v['n']}",)] if self._move(view, v["n"], self._undoes(view, v), status=v["status"]) else []

    def advance_need_less(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        row: Any = view.get(("step", v["n"]))
        if not self._move(view, v["n"], row.status == "waiting" and row.needs > 0, needs=row.needs - 1):
            return []
        lists = json.dumps(row.after), json.dumps(row.leads_to)
        return [(f"s{v['n']}", row.needs - 1, row.condition, *lists, SPEC, row.job_id)]

    def advance_condition(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        row: Any = view.get(("step", v["n"]))
        return [(row.condition,)]

    def advance_before(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        rows: Any = [(n, view.get(("step", n))) for n in v["steps"]]
        jobs: Any = {row.job_id: row.job_id and view.get(("job", row.job_id)) for _, row in rows}
        return [
            (
                n,
                row.status,
                row.job_id,
                jobs[row.job_id] and jobs[row.job_id].run,
                row.status,
                "all_ok",
                None,
                1,
                0,
                0,
                "t",
            )
            for n, row in rows
        ]

    def _may_start(self, view: View, v: dict[str, Any]) -> bool:
        row: Any = view.get(("step", v["n"]))
        return bool(row.status == "waiting" and row.needs == 0)

    def advance_start_step(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        fields = {"status": "running", "job_id": v["job_id"], "ended_no": None}
        return [(1,)] if self._move(view, v["n"], self._may_start(view, v), **fields) else []

    def advance_skip_step(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        return [(1,)] if self._move(view, v["n"], self._may_start(view, v), status="skipped") else []

    def advance_skip_waiting(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        for key, row in self._steps(view):
            if row.status == "waiting" and "stop.skip" not in self.missing:
                view.put(key, row._replace(status="skipped" if row.job_id is None else "failed"))
        return []

    def advance_next_undo(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        found = [(row.ended_no, key[1], row) for key, row in self._steps(view) if row.status in ("done", "failed")]
        if not found:
            return []
        _, n, row = (min if "undo.last" in self.missing else max)(found, key=lambda one: one[0])
        return [(n, f"s{n}", row.undo, row.job_id)]

    def advance_family(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        return [(v["job_id"],)]

    def advance_restless(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        _, row = self._stripe(view, v["job_id"])
        return [(v["job_id"],)] if row.left > 0 else []

    def advance_settle_step(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        row: Any = view.get(("step", v["n"]))
        return [(1,)] if self._move(view, v["n"], row.status in ("done", "failed"), status=v["status"]) else []

    def advance_begin_undo(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        row: Any = view.get(("step", v["n"]))
        fields = {"status": "undoing", "undo_job_id": v["job_id"]}
        return [(1,)] if self._move(view, v["n"], row.status in ("done", "failed"), **fields) else []

    def advance_unsettled(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        return [(sum(row.status in ("manual", "undo_failed") for _, row in self._steps(view)),)]

    def advance_undoable(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        return [(any(row.undo is not None for _, row in self._steps(view)),)]

    def flow_row(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        row: Any = view.get(("flow",))
        if row is None:
            return []
        return [
            (FLOW, 0, "f", None, row.status, row.cause, None, row.run, row.running, row.failures, None, 0, None, None)
        ]

    def flow_steps(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        found = []
        for key, row in self._steps(view):
            part: Any = row.job_id and view.get(("part", row.job_id, 0))
            lacks = part.status != "succeeded" if row.status == "failed" else None
            spec = None if row.after else SPEC
            found.append((key[1], row.status, json.dumps(row.after), row.job_id, row.ended_no, spec, lacks))
        return found

    def flow_job_of(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        row: Any = view.get(("job", v["id"]))
        return [] if row is None else [(row.run, row.status, 9)]

    def flow_run_again(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        for n in v["steps"]:
            row: Any = view.get(("step", n))
            self._move(view, n, row.status == "failed", status="running", ended_no=None)
        return [(n,) for n in v["steps"]]

    def flow_wait_again(self, view: View, v: dict[str, Any], rows: Any) -> Rows:
        for n, needs in rows:
            row: Any = view.get(("step", n))
            free = row.job_id is None or row.ended_no is not None
            self._move(view, n, row.status in ("failed", "skipped") and free, status="waiting", needs=needs)
        return [(n,) for n, _ in rows]

    def flow_reopen_flow(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        row: Any = view.get(("flow",))
        if row.status not in ("failed", "cancelled") or row.run != v["run"]:
            return []
        fresh = row._replace(status="running", cause=None, run=row.run + 1, running=v["running"], failures=0)
        view.put(("flow",), fresh)
        return [(row.run + 1,)]

    def flow_step_named(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        n = int(v["name"][1:])
        row: Any = view.get(("step", n))
        return [] if row is None else [(n, row.status, row.undo_job_id)]

    def flow_settle_by_hand(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        n = int(v["name"][1:])
        row: Any = view.get(("step", n))
        open_ = self.holds("resolve.status", row.status in ("manual", "undo_failed"))
        return [(n, row.job_id)] if self._move(view, n, open_, status=v["status"]) else []

    def flow_undo_again(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        row: Any = view.get(("step", v["n"]))
        open_ = self.holds("undo_again.status", row.status == "undo_failed")
        return [(1,)] if self._move(view, v["n"], open_, status="undoing") else []
