"""What the statements of effects do. The time of every call is over at once: another may take it up."""

from __future__ import annotations

from typing import Any

from fanin.protocol.steps import Rows
from tests.model.graph_rows import Effect, Guards
from tests.model.world import Key, View

ONCE = "at_most_once"


class EffectRules(Guards):
    """The statements of the room ``effect``, and those by which an undo looks at effects."""

    def _key(self, v: dict[str, Any]) -> Key:
        return ("effect", v["job_id"], v["idx"], v["name"])

    def _effects(self, view: View, job_id: str | None = None) -> list[tuple[Key, Any]]:
        return [(key, view.get(key)) for key in view.keys("effect") if job_id in (None, key[1])]

    def effect_register(self, view: View, v: dict[str, Any], rows: Any) -> Rows:
        for job_id, idx, name, mode, _, _, allowed in rows:
            key = ("effect", job_id, idx, name)
            if key in view.others:
                view.lock(key)
            row: Any = view.get(key)
            if row is None:
                view.insert(key, Effect("registered", mode, 0, allowed, relayed=True))
            elif row.status in ("calling", "failed", "unknown") and row.mode != ONCE:
                status = "calling" if row.status == "calling" else "registered"
                view.put(key, row._replace(status=status, relayed=True, allowed=row.calls + allowed))
        return []

    def effect_hold_part(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        key = ("part", v["job_id"], v["idx"])
        row: Any = view.get(key)
        if row.status != "running" or (row.attempt, row.claim) != (v["attempt"], v["claim_id"]) or row.waiting:
            return []
        view.lock(key)
        return [(0,)]

    def effect_hold_stripe(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        key, row = self._stripe(view, v["job_id"])
        if not self.holds("begin.closed", not row.closed):
            return []
        self._lock(view, key, "begin.closed")
        return [(0,)]

    def effect_name_effect(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        key = self._key(v)
        if key in view.others:
            view.lock(key)
        if view.get(key) is None:
            view.insert(key, Effect("registered", v["mode"], 0, v["calls_allowed"]))
        return []

    def effect_call_now(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        row: Any = view.get(self._key(v))
        fresh = row.status == "registered" and row.calls < row.allowed
        once_more = row.status in ("failed", "unknown", "calling") and self.holds("call.once", row.mode != ONCE)
        if not fresh and not once_more:
            return []
        calls, doubt = row.calls + 1, row.doubtful or row.status == "calling"
        more = row._replace(status="calling", claim=v["caller_id"], relayed=False, doubtful=doubt, calls=calls)
        view.put(self._key(v), more._replace(allowed=row.allowed if row.mode == ONCE else max(row.allowed, calls)))
        return [(doubt,)]

    def effect_find(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        row: Any = view.get(self._key(v))
        return [] if row is None else [(row.status, row.mode, "1", None, None, row.doubtful, row.claim, -1.0)]

    def effect_claim_effects(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        for key, row in self._effects(view):
            again = row.status == "calling" and row.mode != ONCE
            due = (again or row.status == "registered") and row.relayed and row.calls < row.allowed
            if key in view.others or not (due or ("take.once" in self.missing and row.status == "calling")):
                continue
            doubt = row.doubtful or row.status == "calling"
            view.put(key, row._replace(status="calling", claim=v["caller_id"], calls=row.calls + 1, doubtful=doubt))
            return [(key[3],)]
        return []

    def effect_held_effects(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        held = [
            (key, row) for key, row in self._effects(view) if row.claim == v["caller_id"] and row.status == "calling"
        ]
        return [(*key[1:], row.mode, "1", row.calls, row.doubtful) for key, row in held]

    def effect_settle_effects(self, view: View, v: dict[str, Any], rows: Any) -> Rows:
        settled = []
        for job_id, idx, name, caller, verb, final, doubtful, *_ in rows:
            key = ("effect", job_id, idx, name)
            row: Any = view.get(key)
            if verb == "mark":
                if not self.holds("mark.status", row.status in ("registered", "calling", "failed", "unknown")):
                    continue
                status = "done"
            else:
                if row.status != "calling" or row.claim != caller:
                    continue
                again = row.relayed and not final and row.calls < row.allowed and row.mode != ONCE
                status = "registered" if again else "unknown" if doubtful else "failed"
            view.put(key, row._replace(status=status, doubtful=doubtful))
            settled.append((job_id, idx, name, status))
        return settled

    def effect_expire_effects(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        gone = []
        for key, row in self._effects(view):
            last = row.mode == ONCE or not row.relayed or row.calls >= row.allowed
            if row.status == "calling" and last and key not in view.others:
                view.put(key, row._replace(status="unknown", doubtful=True))
                gone.append(key[1:])
        return gone

    def effect_retry_effects(self, view: View, v: dict[str, Any], rows: Any) -> Rows:
        found = []
        for where in rows:
            key = ("effect", *where)
            row: Any = view.get(key)
            if row.status == "failed" or (row.status == "unknown" and row.mode != ONCE):
                view.put(key, row._replace(status="registered", relayed=True, allowed=row.calls + 1))
                found.append(where)
        return found

    def effect_settle_by_hand(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        row: Any = view.get(self._key(v))
        if row.status in ("registered", "unknown") or (row.status == "failed" and v["done"]):
            view.put(self._key(v), row._replace(status="done" if v["done"] else "failed", doubtful=False))
        return []

    # What an undo does.

    def effect_cancel_effects(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        gone = []
        for key, row in self._effects(view, v["job_id"]):
            sure = self.holds("cancel.doubt", not row.doubtful)
            if row.status in ("registered", "failed") and sure and "undo.cancel" not in self.missing:
                view.put(key, row._replace(status="cancelled"))
                gone.append(key[2:])
        return gone

    def advance_hold_effects(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        found = self._effects(view, v["job_id"])
        for key, _row in found:
            if "undo.hold" not in self.missing:
                self._no_wait(view, key)
        return [key[2:] for key, _row in found]

    def advance_reverse_effects(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        for key, row in self._effects(view, v["job_id"]):
            part: Any = view.get(("part", *key[1:3]))
            if row.status == "done" and (v["by_hand"] or part.status == "succeeded"):
                view.put(key, row._replace(status="reversed"))
        return []

    def _standing(self, view: View, v: dict[str, Any], *states: str) -> Rows:
        return [(*key[2:], row.status) for key, row in self._effects(view, v["job_id"]) if row.status in states][:1]

    def advance_standing_effect(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        states = ("registered", "calling", "done", "unknown")
        return [] if "undo.standing" in self.missing else self._standing(view, v, *states)

    def advance_unsure(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        return self._standing(view, v, *("registered", "calling", "unknown"))

    def advance_took_effect(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        _, stripe = self._stripe(view, v["job_id"])
        called = any(row.status != "cancelled" for _, row in self._effects(view, v["job_id"]))
        parts = stripe.ok > 0 or stripe.left > 0
        return [(parts or (called and "undo.took" not in self.missing),)]
