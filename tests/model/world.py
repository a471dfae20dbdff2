"""A small world for the protocol's own generators: rows, row locks and commits, and nothing else.

The control flow is the product's, unchanged. What each statement does to the rows is written here by hand, a few lines
per statement, with every guard under a name, so that a variant of the protocol without one of them can be explored. The
real SQL is explored on a real server in tests/races; here every order of many transactions is, with crashes, lost
answers and leases that end at any moment.

A statement acts at once on what is committed and on its own transaction's writes, or waits (`Blocked`) for a row that
matches and that another transaction holds; a row that does not match is not locked.
That is READ COMMITTED without its snapshots; those are the real server's business.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fanin.protocol.steps import Rows, Statement

JOB = "00000000-0000-0000-0000-000000000001"

Key = tuple[Any, ...]
Row = tuple[Any, ...]
Committed = frozenset[tuple[Key, Row]]

# Fields of the rows.
STATUS, RUN, OPEN, POLICY, SUCCESSOR = range(5)  # job
LEFT, OK, FAILED, ABANDONED, SEALED, CLOSED = range(6)  # stripe
P_STATUS, READY, ATTEMPT, ALLOWED, CLAIM, STRIPE, RESULT = range(7)  # part


GONE: Row = ("gone",)
"""What a transaction writes where it removes a row."""


def written(rows: dict[Key, Row], writes: dict[Key, Row]) -> dict[Key, Row]:
    """The rows after a commit."""
    return {key: row for key, row in {**rows, **writes}.items() if row is not GONE}


class Blocked(Exception):
    """The statement waits for the transaction that holds the row."""


class Broken(Exception):
    """A constraint of the schema was violated: the database would abort the transaction."""


class Busy(Exception):
    """The statement does not wait for the row that another transaction holds (NOWAIT)."""


class View:
    """The rows as one transaction sees them, what it has written, and what it has locked."""

    def __init__(self, committed: dict[Key, Row], writes: dict[Key, Row], locks: set[Key], others: set[Key]) -> None:
        self.committed = committed
        self.writes = writes
        self.locks = locks
        self.others = others

    def get(self, key: Key) -> Row | None:
        row = self.writes.get(key, self.committed.get(key))
        return None if row is GONE else row

    def keys(self, kind: str) -> list[Key]:
        return sorted(k for k in {*self.committed, *self.writes} if k[0] == kind and self.get(k) is not None)

    def lock(self, key: Key) -> None:
        if key in self.others:
            raise Blocked
        self.locks.add(key)

    def put(self, key: Key, row: Row) -> None:
        self.lock(key)
        self.writes[key] = row

    def remove(self, key: Key) -> None:
        self.lock(key)
        self.writes[key] = GONE

    def insert(self, key: Key, row: Row) -> None:
        if key in self.others:
            raise Blocked
        if self.get(key) is not None:
            raise Broken(f"{key} stands already")
        self.put(key, row)

    def stripe(self, number: int) -> Row:
        row = self.get(("stripe", number))
        assert row is not None
        return row

    def job(self) -> Row:
        row = self.get(("job",))
        assert row is not None
        return row


def but(row: Row, **fields: Any) -> Row:
    """The row with fields replaced, by position: ``but(row, _0=…)``."""
    changed = list(row)
    for name, value in fields.items():
        changed[int(name[1:])] = value
    return tuple(changed)


class Rules:
    """What each statement does. ``missing`` names the guards that are left out."""

    def __init__(self, missing: frozenset[str] = frozenset(), due: int | None = None) -> None:
        self.missing = missing
        self.due = due
        """The part whose lease or delay is over now, as the clock would have it; None: nobody's."""

    def holds(self, guard: str, condition: bool) -> bool:
        return condition or guard in self.missing

    def locks(self, guard: str) -> bool:
        return guard not in self.missing

    def do(self, statement: Statement, view: View) -> Rows:
        name = f"{statement.query.room}_{statement.query.name}"
        act: Callable[[View, dict[str, Any], Any], Rows] = getattr(self, name)
        return act(view, statement.values, statement.rows)

    # lease

    def lease_claim_parts(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        for key in view.keys("part"):
            row = view.get(key)
            assert row is not None
            stripe = view.stripe(row[STRIPE])
            ready = row[READY] or (self.due == key[1] and "claim.ready" in self.missing and row[P_STATUS] == "running")
            if not ready or key in view.others or (stripe[CLOSED] and stripe[LEFT] > 0):
                continue
            view.put(key, but(row, _0="running", _1=False, _2=row[ATTEMPT] + 1, _4=v["claim_id"]))
            return [(JOB, key[1], "t", row[ATTEMPT] + 1, row[ALLOWED], "[]", None, row[STRIPE])]
        return []

    def lease_wake_parts(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        key = ("part", self.due)
        row = view.get(key)
        if row is None or key in view.others or row[READY] or row[P_STATUS] not in ("pending", "running"):
            return []
        if not self.holds("wake.allowance", row[ATTEMPT] < row[ALLOWED]):
            return []
        view.put(key, but(row, _1=True))
        return [(JOB, key[1], row[ATTEMPT], row[P_STATUS], "w", "q")]

    def lease_log_lost(self, *_: Any) -> Rows:
        return []

    def lease_lost_before(self, *_: Any) -> Rows:
        return []  # says only in which company a part is run

    def lease_spent_parts(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        row = view.get(("part", self.due))
        if row is None or row[P_STATUS] != "running" or row[READY] or row[ATTEMPT] < row[ALLOWED]:
            return []
        return [(JOB, self.due, row[ATTEMPT])]

    def lease_renew_parts(self, view: View, v: dict[str, Any], rows: Any) -> Rows:
        held = self._mine(view, rows, "renew")
        for key, row in held:
            view.put(key, but(row, _1=False))
        return [(JOB, key[1], row[ATTEMPT], row[CLAIM]) for key, row in held]

    def lease_still_held(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        row = view.get(("part", v["idx"]))
        return [(1,)] if row and row[P_STATUS] == "running" and row[CLAIM] == v["claim_id"] else []

    # finish

    def _mine(self, view: View, rows: Any, verb: str) -> list[tuple[Key, Row]]:
        found = []
        for _, idx, attempt, claim, *_rest in rows:
            key = ("part", idx)
            row = view.get(key)
            if row is None:
                continue
            held = (
                self.holds(f"{verb}.status", row[P_STATUS] == "running")
                and self.holds(f"{verb}.attempt", row[ATTEMPT] == attempt)
                and self.holds(f"{verb}.claim", row[CLAIM] == claim)
            )
            if held:
                view.lock(key)
                found.append((key, row))
        return found

    def finish_settle_parts(self, view: View, v: dict[str, Any], rows: Any) -> Rows:
        reports = {row[1]: row for row in rows}
        settled = []
        for key, row in self._mine(view, rows, "settle"):
            _, idx, attempt, claim, verb, result, delay = reports[key[1]]
            spent = row[ATTEMPT] >= row[ALLOWED]
            status = {"succeed": "succeeded", "fail": "failed", "release": "pending"}.get(verb)
            status = status or ("failed" if spent else "pending")
            allowed = row[ALLOWED] + (verb == "release" and "release.refund" not in self.missing)
            kept = result if verb == "succeed" else None
            ready = status == "pending" and delay <= 0
            view.put(key, but(row, _0=status, _1=ready, _3=allowed, _6=kept))
            settled.append((JOB, idx, attempt, claim, row[STRIPE], status))
        return settled

    def finish_reap_parts(self, view: View, v: dict[str, Any], rows: Any) -> Rows:
        reaped = []
        for _, idx, attempt in rows:
            key = ("part", idx)
            row = view.get(key)
            assert row is not None
            if not (
                self.holds("reap.status", row[P_STATUS] == "running")
                and self.holds("reap.attempt", row[ATTEMPT] == attempt)
                and self.holds("reap.allowance", row[ATTEMPT] >= row[ALLOWED])
            ):
                continue
            stale = None if row[ATTEMPT] == attempt else "reaped for an older attempt"
            view.put(key, but(row, _0="failed", _1=False, _6=stale))
            reaped.append((JOB, idx, row[STRIPE], row[ATTEMPT], "w"))
        return reaped

    def finish_look_at_part(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        row = view.get(("part", v["idx"]))
        return [] if row is None else [(row[P_STATUS], row[ATTEMPT], row[CLAIM], row[RESULT] == v["result"], False)]

    def counting_policy(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        return [(view.job()[POLICY], False, None)]

    def counting_lock_stripes(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        if self.locks("judge.lock"):
            for key in view.keys("stripe"):
                view.lock(key)
        return [(key[1],) for key in view.keys("stripe")]

    def counting_count_down(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        key = ("stripe", v["stripe"])
        judged = '"quorum"' in view.job()[POLICY]
        row = view.stripe(v["stripe"])
        if not self.holds("count.closed", not row[CLOSED]):
            return []
        if not self.holds("count.judged", v["locked"] or not judged):
            return []
        left = row[LEFT] - v["succeeded"] - v["failed"]
        if left < 0:
            raise Broken("remaining would be negative")
        view.put(key, but(row, _0=left, _1=row[OK] + v["succeeded"], _2=row[FAILED] + v["failed"]))
        return [(left, row[SEALED])]

    def counting_judged(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        return [('"quorum"' in view.job()[POLICY],)]

    def success_count_expected(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        key = ("stripe", v["stripe"])
        row = view.stripe(v["stripe"])
        left = row[LEFT] - v["succeeded"]
        if not self.holds("expected.closed", not row[CLOSED]):
            return []
        if not self.holds("expected.judged", '"quorum"' not in view.job()[POLICY]):
            return []
        if not self.holds("expected.left", left >= 0):
            return []
        if left < 0:
            raise Broken("remaining would be negative")
        view.put(key, but(row, _0=left, _1=row[OK] + v["succeeded"]))
        return [(left, row[SEALED])]

    def counting_count_stripes(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        row = view.job()
        left = row[OPEN] - v["emptied"]
        if not self.holds("stripes.status", row[STATUS] == "running" and left >= 0):
            return []
        view.put(("job",), but(row, _2=max(left, 0)))
        return [(left,)]

    def counting_sums(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        stripes = [view.stripe(key[1]) for key in view.keys("stripe")]
        left, ok, failed, gone = (sum(s[n] for s in stripes) for n in (LEFT, OK, FAILED, ABANDONED))
        return [(left + ok + failed + gone, left, ok, failed, int(all(s[SEALED] for s in stripes)))]

    def counting_close_stripes(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        for key in view.keys("stripe"):
            if self.locks("close.stripes"):
                view.put(key, but(view.stripe(key[1]), _5=True))
        return []

    def ending_end_job(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        row = view.job()
        if not self.holds("end.status", row[STATUS] in ("open", "running")):
            return []
        view.put(("job",), but(row, _0=v["status"], _2=0))
        return [(row[RUN], row[RUN], row[SUCCESSOR], None, 0, None, "t", None, None, None, None, None)]

    def ending_announce(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        if "announce.unique" in self.missing:
            count = sum(1 for key in view.keys("event") if key[1] == v["event_key"])
            view.put(("event", v["event_key"], count), (1,))
        else:
            view.insert(("event", v["event_key"], 0), (1,))
        return []

    def born_create(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        view.insert(("successor", v["id"]), (1,))
        return []

    def _nothing(self, *_: Any) -> Rows:
        return []

    born_create_stripe = born_create_part = _nothing
    finish_log_attempts = born_ring = redrive_ring = lease_log_stopped = deeds_write_down = deeds_written = _nothing

    # close

    def close_lock_all_stripes(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        if self.locks("close.lock"):
            for key in view.keys("stripe"):
                view.lock(key)
        return [(key[1],) for key in view.keys("stripe")]

    def close_standing(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        view.lock(("job",))
        row = view.job()
        return [("running" if "close.status" in self.missing else row[STATUS], row[POLICY], True)]

    def close_lock_closed_stripe(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        key = ("stripe", v["stripe"])
        row = view.stripe(v["stripe"])
        if not self.holds("sweep.closed", row[CLOSED]):
            return []
        if self.locks("sweep.lock"):
            view.lock(key)
        return [(row[LEFT],)]

    def close_sweep_parts(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        swept = []
        for key in view.keys("part"):
            row = view.get(key)
            assert row is not None
            live = self.holds("sweep.live", row[P_STATUS] in ("pending", "running"))
            if row[STRIPE] == v["stripe"] and live and key not in view.others:
                view.put(key, but(row, _0="abandoned", _1=False, _6=None))
                swept.append((key[1],))
        return swept

    def close_count_swept(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        key = ("stripe", v["stripe"])
        row = view.stripe(v["stripe"])
        if row[LEFT] < v["swept"]:
            raise Broken("remaining would be negative")
        view.put(key, but(row, _0=row[LEFT] - v["swept"], _3=row[ABANDONED] + v["swept"]))
        return [(row[LEFT] - v["swept"],)]

    # redrive

    def _ended(self, view: View) -> list[tuple[Key, Row]]:
        rows = [(key, view.get(key)) for key in view.keys("part")]
        return [(key, row) for key, row in rows if row is not None and row[P_STATUS] in ("failed", "abandoned")]

    def redrive_lock_ended_parts(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        found = self._ended(view)
        for key, _row in found:
            if self.locks("redrive.lock"):
                view.lock(key)
        return [(key[1], row[STRIPE], row[P_STATUS]) for key, row in found]

    def redrive_lock_stripes(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        stripes = []
        for key in view.keys("stripe"):
            if self.locks("redrive.lock"):
                view.lock(key)
            row = view.stripe(key[1])
            stripes.append((key[1], row[LEFT], row[CLOSED]))
        return stripes

    def redrive_standing(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        view.lock(("job",))
        row = view.job()
        return [("failed" if "redrive.status" in self.missing else row[STATUS], row[RUN], "q", None, None)]

    def redrive_count_ended(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        return [(len(self._ended(view)),)]

    def redrive_revive_parts(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        revived = []
        for key, row in self._ended(view):
            if key[1] in v["chosen"]:
                attempt = 0 if "redrive.attempt" in self.missing else row[ATTEMPT]
                allowed = row[ALLOWED] if "redrive.allowance" in self.missing else attempt + v["attempts"]
                view.put(key, but(row, _0="pending", _1=True, _2=attempt, _3=allowed))
                revived.append((key[1], 0))
        return revived

    def redrive_reopen_stripe(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        key = ("stripe", v["stripe"])
        row = view.stripe(v["stripe"])
        failed, gone = row[FAILED] - v["failed"], row[ABANDONED] - v["abandoned"]
        if min(failed, gone) < 0:
            raise Broken("a counter would be negative")
        left = row[LEFT] + v["failed"] + v["abandoned"]
        closed = row[CLOSED] and "redrive.open" in self.missing
        view.put(key, (left, row[OK], failed, gone, True, closed))
        return [(left,)]

    def redrive_created(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        return [(sum(sum(view.stripe(key[1])[:4]) for key in view.keys("stripe")),)]

    def redrive_reopen_job(self, view: View, v: dict[str, Any], _: Any) -> Rows:
        row = view.job()
        run = row[RUN] + ("redrive.run" not in self.missing)
        view.put(("job",), but(row, _0="running", _1=run, _2=v["open_stripes"]))
        return [(run,)]


def violations(rows: dict[Key, Row]) -> list[str]:
    """What is wrong with a committed state."""
    status, run, open_stripes, *_rest, successor = rows["job",]
    parts = {key[1]: row for key, row in rows.items() if key[0] == "part"}
    stripes = {key[1]: row for key, row in rows.items() if key[0] == "stripe"}
    events = [key for key in rows if key[0] == "event"]
    born = [key for key in rows if key[0] == "successor"]
    ended = status in ("completed", "failed", "cancelled")
    wrong = []
    for number, row in stripes.items():
        mine = [part for part in parts.values() if part[STRIPE] == number]
        live = sum(part[P_STATUS] in ("pending", "running") for part in mine)
        counts = [sum(part[P_STATUS] == s for part in mine) for s in ("succeeded", "failed", "abandoned")]
        if [live, *counts] != list(row[:4]):
            wrong.append(f"c1: stripe {number} counts {row[:4]}, the parts are {live, *counts}")
        if ended and not row[CLOSED] and row[LEFT]:
            wrong.append("j8: ended, neither closed nor empty")
    open_now = sum(1 for row in stripes.values() if not row[CLOSED] and row[LEFT])
    if status == "running" and open_stripes != open_now:
        wrong.append(f"s1: {open_stripes} open stripes, really {open_now}")
    if len({row[CLOSED] for row in stripes.values()}) > 1:
        wrong.append("s2: stripes closed one by one")
    if len(events) != run - (not ended):
        wrong.append(f"j2: {len(events)} events in run {run}, {status}")
    if successor and (len(born) > run - (status != "completed") or (status == "completed" and not born)):
        wrong.append(f"j3: {len(born)} successors in run {run}, {status}")
    if '"quorum"' in rows["job",][POLICY] and status == "running" and any(row[OK] for row in stripes.values()):
        wrong.append("the quorum is reached and the job goes on")
    for idx, part in parts.items():
        if part[ATTEMPT] > part[ALLOWED] or (part[P_STATUS] == "pending" and part[ATTEMPT] >= part[ALLOWED]):
            wrong.append(f"t3, j7: part {idx} {part[P_STATUS]} at attempt {part[ATTEMPT]} of {part[ALLOWED]}")
        if (part[P_STATUS] == "succeeded") != (part[RESULT] is not None):
            wrong.append(f"part {idx} is {part[P_STATUS]} with result {part[RESULT]}")
    return wrong
