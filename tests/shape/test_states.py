"""The states are written once, in domain/states.py; what repeats them is compared with it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from fanin.domain import states
from fanin.domain.effects import MODES
from fanin.domain.flows import CONDITIONS
from fanin.domain.policy import Policy
from fanin.domain.states import (
    EFFECT_EDGES,
    EFFECT_NOT_DONE,
    EFFECT_OPEN,
    EFFECT_STATES,
    EFFECT_STUCK,
    EVENT_EDGES,
    EVENT_STATES,
    EVENT_UNSENT,
    FLOW_EDGES,
    FLOW_LIVE,
    FLOW_STATES,
    JOB_EDGES,
    JOB_ENDED,
    JOB_STATES,
    OUTCOMES,
    OUTPUT_COUNTING,
    OUTPUT_EDGES,
    OUTPUT_STATES,
    OUTPUT_UNDECIDED,
    PART_EDGES,
    PART_ENDED,
    PART_LIVE,
    PART_STATES,
    STEP_EDGES,
    STEP_LIVE,
    STEP_STATES,
    STEP_STUCK,
    STEP_TO_UNDO,
    STEP_UNDONE,
)
from fanin.protocol import advance, check, close, deeds, effect, flow, lease, outbox, outputs, redrive, skip, steps
from fanin.protocol.effect import Call
from fanin.protocol.steps import Query, Rows, Txn
from fanin.stores import migrate
from fanin.stores.base import Store
from tests.protocol import flows
from tests.protocol.effects import begin, called, intent, said, wanting
from tests.protocol.helpers import (
    THEN,
    Clock,
    append,
    cancel,
    claim,
    done,
    failed,
    make,
    make_open,
    released,
    retried,
    run_all,
    say,
    seal,
    settle,
    sweep_all,
    take,
)

ROOT = Path(__file__).resolve().parents[2]
ROOMS = sorted(path.stem for path in (ROOT / "src/fanin/protocol").glob("*.sql"))
STATEMENTS = [query for room in ROOMS for query in steps.parse(room, steps.read(room))]


def literals(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"'(\w+)'", text))


# The schema


@pytest.mark.parametrize("dialect", ["pg", "lite"])
def test_the_constraints_of_the_schema_list_the_states_and_outcomes(dialect: str) -> None:
    text = "\n".join(m.text for m in migrate.migrations(dialect))
    lists = {
        table: {
            column: literals(listed)
            for column, listed in re.findall(r"^    (\w+) text[^(\n]*CHECK \(\w+ IN\s*\(([^)]*)\)", body, re.MULTILINE)
        }
        for table, body in re.findall(r"CREATE TABLE fanin\.(\w+) \((.*?)\n\)", text, re.DOTALL)
    }
    assert lists["job"] == {"status": JOB_STATES, "outcome": OUTCOMES}
    assert lists["part"] == {"status": PART_STATES}
    assert lists["staged_output"] == {"status": OUTPUT_STATES}
    assert lists["effect"] == {"mode": MODES, "status": EFFECT_STATES}
    assert lists["flow"]["status"] == FLOW_STATES
    if dialect == "pg":  # there the constraint was written anew, not the table
        (anew,) = re.findall(r"flow_step_status_check CHECK \(status IN \(([^)]*)\)\)", text)
        lists["flow_step"]["status"] = literals(anew)
    assert lists["flow_step"] == {"status": STEP_STATES, "condition": CONDITIONS}
    assert f"CHECK ((status IN {FLOW_LIVE!r}) = (finished_at IS NULL))" in text
    assert f"CHECK ((status IN {EFFECT_OPEN!r}) = (settled_at IS NULL))" in text
    assert f"WHERE status IN {EFFECT_STUCK!r}" in text
    assert f"CHECK ((status IN {JOB_ENDED!r}) = (finished_at IS NOT NULL))" in text
    assert f"CHECK (NOT ready OR status IN {PART_LIVE!r})" in text
    assert "CHECK ((status = 'succeeded') = (result IS NOT NULL))" in text
    assert f"outbox ADD COLUMN status text NOT NULL DEFAULT 'waiting'\n    CHECK (status IN {EVENT_STATES!r})" in text
    assert f"WHERE status IN {EVENT_UNSENT!r} AND due_at >= 0" in text


def test_the_states_of_a_part_are_live_or_ended_and_those_of_a_job_too() -> None:
    assert PART_LIVE + PART_ENDED == PART_STATES
    assert ("open", "running", *JOB_ENDED) == JOB_STATES
    for edges, every in (
        (JOB_EDGES, JOB_STATES),
        (PART_EDGES, PART_STATES),
        (EVENT_EDGES, EVENT_STATES),
        (OUTPUT_EDGES, OUTPUT_STATES),
        (EFFECT_EDGES, EFFECT_STATES),
        (FLOW_EDGES, FLOW_STATES),
        (STEP_EDGES, STEP_STATES),
    ):
        assert {e.source for e in edges} | {e.target for e in edges} == set(every)
        assert len(set(edges)) == len(edges)
    assert not any(e.source == "succeeded" for e in PART_EDGES)
    assert not any(e.source == "published" for e in EVENT_EDGES)
    assert {e.verb for e in EFFECT_EDGES if e.source == "done"} == {"reverse"}
    assert not any(e.source in ("cancelled", "reversed") for e in EFFECT_EDGES)
    assert {e.verb for e in JOB_EDGES if e.source in JOB_ENDED} == {"redrive"}


# The guards of the SQL

EDGES = {
    "part": PART_EDGES,
    "job": JOB_EDGES,
    "outbox": EVENT_EDGES,
    "staged_output": OUTPUT_EDGES,
    "effect": EFFECT_EDGES,
    "flow": FLOW_EDGES,
    "flow_step": STEP_EDGES,
}

WRITES: dict[str, tuple[str, set[str]]] = {
    "lease.claim_parts": ("part", {"claim"}),
    "finish.settle_parts": ("part", {"succeed", "fail", "retry", "release"}),
    "finish.reap_parts": ("part", {"reap"}),
    "close.sweep_parts": ("part", {"sweep"}),
    "skip.skip_part": ("part", {"skip"}),
    "redrive.revive_parts": ("part", {"redrive"}),
    "redrive.tell_part": ("part", {"tell"}),
    "waiting.settle_waiting": ("part", {"succeed", "fail"}),
    "waiting.let_go": ("part", {"release"}),
    "submit.seal_job": ("job", {"seal"}),
    "ending.end_job": ("job", {"finish", "close"}),
    "redrive.reopen_job": ("job", {"redrive"}),
    "outbox.claim_events": ("outbox", {"take"}),
    "outbox.settle_events": ("outbox", {"mark", "refuse", "park", "release"}),
    "outbox.retry_parked": ("outbox", {"retry"}),
    "outputs.stage": ("staged_output", {"stage"}),
    "outputs.mark_ready": ("staged_output", {"finish"}),
    "outputs.keep": ("staged_output", {"keep"}),
    "outputs.mark_swept": ("staged_output", {"remove"}),
    "effect.register": ("effect", {"defer"}),
    "effect.call_now": ("effect", {"call"}),
    "effect.claim_effects": ("effect", {"take"}),
    "effect.settle_effects": ("effect", {"mark", "refuse"}),
    "effect.expire_effects": ("effect", {"expire"}),
    "effect.settle_by_hand": ("effect", {"settle"}),
    "effect.retry_effects": ("effect", {"retry"}),
    "effect.cancel_effects": ("effect", {"cancel"}),
    "advance.reverse_effects": ("effect", {"reverse"}),
    "advance.save_flow": ("flow", {"stop", "finish", "undo", "resolve", "retry"}),
    "flow.reopen_flow": ("flow", {"redrive"}),
    "advance.start_step": ("flow_step", {"start"}),
    "advance.skip_step": ("flow_step", {"skip"}),
    "advance.skip_waiting": ("flow_step", {"stop"}),
    "advance.end_step": ("flow_step", {"finish"}),
    "advance.begin_undo": ("flow_step", {"undo"}),
    "advance.settle_step": ("flow_step", {"leave"}),
    "advance.end_undo": ("flow_step", {"finish_undo"}),
    "flow.settle_by_hand": ("flow_step", {"resolve"}),
    "flow.undo_again": ("flow_step", {"retry"}),
    "flow.run_again": ("flow_step", {"redrive"}),
    "flow.wait_again": ("flow_step", {"wait"}),
}
"""Every statement that changes a state, and what it does by the tables of states."""
GIVEN: dict[str, set[str]] = {
    "ending.end_job": set(JOB_ENDED),
    "waiting.settle_waiting": {"succeeded", "failed"},
    "advance.end_step": {"done", "failed", "skipped"},
    "advance.settle_step": {"nothing_to_undo", "manual"},
    "advance.end_undo": {"undone", "undo_failed"},
    "flow.settle_by_hand": set(STEP_UNDONE),
}
"""Where the new state is a parameter: what is given there."""


SOURCE = r"(?:FROM (?:\w+ AS \w|unnest.*?\)|\(SELECT.*?\) AS u)\n)?"
WRITE = re.compile(rf"(?:UPDATE|INSERT INTO) fanin\.(\w+).*?SET\s(.*?)\n *{SOURCE}WHERE (.*?)RETURNING", re.DOTALL)


def writes_status(query: Query) -> bool:
    assigned = [
        re.search(r"UPDATE.*?\bSET\s(.*?)\s(?:FROM|WHERE)\s", strip(t), re.DOTALL) for t in query.texts.values()
    ]
    return any(found and re.search(r"\bstatus = ", found[1]) for found in assigned)


def strip(text: str) -> str:
    return re.sub(r"--.*", "", text)


def test_the_statements_that_change_a_state_are_known() -> None:
    assert {f"{q.room}.{q.name}" for q in STATEMENTS if writes_status(q)} == set(WRITES)


@pytest.mark.parametrize("dialect", ["pg", "lite"])
@pytest.mark.parametrize("name", WRITES)
def test_the_guard_of_a_write_names_the_states_that_it_leaves_and_the_write_those_it_enters(
    name: str, dialect: str
) -> None:
    (query,) = [q for q in STATEMENTS if f"{q.room}.{q.name}" == name]
    machine, verbs = WRITES[name]
    edges = [e for e in EDGES[machine] if e.verb in verbs]
    sources, targets = {e.source for e in edges}, {e.target for e in edges}
    text = strip(query.texts[dialect])
    found = WRITE.search(text)
    assert found is not None, text
    table, assigned, guard = found.groups()
    assert table == machine
    if machine in ("staged_output", "effect"):
        guard = guard.replace("p.status", "the part's")
    entered = re.search(r"status = (CASE.*?END|'\w+'|:status)", assigned, re.DOTALL)
    assert entered is not None
    if name == "advance.save_flow":  # under the flow's lock: its code alone decides between the edges
        assert "status = :was" in guard
        return
    if entered[1] == ":status":
        assert targets == GIVEN[name]
    else:
        assert set(re.findall(r"(?:THEN |ELSE |^)'(\w+)'", entered[1])) == targets
    left = {
        s
        for one, many in re.findall(r"status (?:= '(\w+)'|IN \(([^)]*)\))", guard)
        for s in (one, *literals(many))
        if s
    }
    if name == "lease.claim_parts":
        # ready stands for the states: the schema says that only a live part is ready.
        assert sources == set(PART_LIVE)
        assert "p.ready" in guard or "AND ready" in text
    else:
        assert left == sources


@pytest.mark.parametrize("query", STATEMENTS, ids=lambda q: f"{q.room}.{q.name}")
def test_every_state_in_a_statement_exists_and_every_list_of_states_is_a_known_one(query: Query) -> None:
    known = {
        PART_LIVE,
        PART_ENDED,
        JOB_ENDED,
        EVENT_UNSENT,
        OUTPUT_UNDECIDED,
        OUTPUT_COUNTING,
        ("open", "running"),
        ("failed", "abandoned"),
        EFFECT_OPEN,
        EFFECT_STUCK,
        EFFECT_NOT_DONE,
        ("staged", "swept"),
        FLOW_LIVE,
        STEP_LIVE,
        STEP_TO_UNDO,
        STEP_STUCK,
        ("failed", *STEP_STUCK, "not_undone"),
        ("succeeded", "failed"),
        ("failed", "skipped"),
        ("failed", "cancelled"),
        ("running", "waiting", "undoing"),
        (*EFFECT_OPEN, "unknown"),
        ("completed", "failed", "cancelled", "compensated"),
        ("registered", "calling", "unknown"),
        ("registered", "calling", "done", "unknown"),
        ("registered", "failed"),
    }
    for text in query.texts.values():
        for many in re.findall(r"status IN \(([^)]*)\)", strip(text)):
            assert literals(many) in known
        for one in re.findall(r"status (?:=|<>) '(\w+)'", strip(text)):
            assert one in {
                *PART_STATES,
                *JOB_STATES,
                *EVENT_STATES,
                *OUTPUT_STATES,
                *EFFECT_STATES,
                *FLOW_STATES,
                *STEP_STATES,
            }
        for one in re.findall(r"outcome\S* (?:=|<>) '(\w+)'", strip(text)):
            assert one in OUTCOMES


# What really happens


AUDIT_PG = """
CREATE TABLE fanin.audit (machine text, old text, new text);
CREATE FUNCTION fanin.audit_it() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO fanin.audit VALUES (TG_TABLE_NAME, OLD.status, NEW.status); RETURN NEW; END $$;
CREATE TRIGGER audit_part AFTER UPDATE ON fanin.part FOR EACH ROW
    WHEN (OLD.status <> NEW.status OR OLD.attempt <> NEW.attempt OR OLD.payload <> NEW.payload)
    EXECUTE FUNCTION fanin.audit_it();
CREATE TRIGGER audit_job AFTER UPDATE ON fanin.job FOR EACH ROW
    WHEN (OLD.status <> NEW.status) EXECUTE FUNCTION fanin.audit_it();
CREATE TRIGGER audit_event AFTER UPDATE ON fanin.outbox FOR EACH ROW
    WHEN (OLD.status <> NEW.status OR OLD.tries <> NEW.tries) EXECUTE FUNCTION fanin.audit_it();
CREATE TRIGGER audit_output AFTER UPDATE ON fanin.staged_output FOR EACH ROW EXECUTE FUNCTION fanin.audit_it();
CREATE TRIGGER audit_effect AFTER UPDATE ON fanin.effect FOR EACH ROW EXECUTE FUNCTION fanin.audit_it();
CREATE TRIGGER audit_flow AFTER UPDATE ON fanin.flow FOR EACH ROW
    WHEN (OLD.status <> NEW.status) EXECUTE FUNCTION fanin.audit_it();
CREATE TRIGGER audit_step AFTER UPDATE ON fanin.flow_step FOR EACH ROW
    WHEN (OLD.status <> NEW.status) EXECUTE FUNCTION fanin.audit_it()
"""
AUDIT_LITE = """
CREATE TABLE fanin.audit (machine text, old text, new text);
CREATE TRIGGER fanin.audit_part AFTER UPDATE ON fanin.part
    WHEN OLD.status <> NEW.status OR OLD.attempt <> NEW.attempt OR OLD.payload <> NEW.payload
    BEGIN INSERT INTO fanin_audit VALUES ('part', OLD.status, NEW.status); END;
CREATE TRIGGER fanin.audit_job AFTER UPDATE ON fanin.job WHEN OLD.status <> NEW.status
    BEGIN INSERT INTO fanin_audit VALUES ('job', OLD.status, NEW.status); END;
CREATE TRIGGER fanin.audit_event AFTER UPDATE ON fanin.outbox WHEN OLD.status <> NEW.status OR OLD.tries <> NEW.tries
    BEGIN INSERT INTO fanin_audit VALUES ('outbox', OLD.status, NEW.status); END;
CREATE TRIGGER fanin.audit_output AFTER UPDATE ON fanin.staged_output
    BEGIN INSERT INTO fanin_audit VALUES ('staged_output', OLD.status, NEW.status); END;
CREATE TRIGGER fanin.audit_effect AFTER UPDATE ON fanin.effect
    BEGIN INSERT INTO fanin_audit VALUES ('effect', OLD.status, NEW.status); END;
CREATE TRIGGER fanin.audit_flow AFTER UPDATE ON fanin.flow WHEN OLD.status <> NEW.status
    BEGIN INSERT INTO fanin_audit VALUES ('flow', OLD.status, NEW.status); END;
CREATE TRIGGER fanin.audit_step AFTER UPDATE ON fanin.flow_step WHEN OLD.status <> NEW.status
    BEGIN INSERT INTO fanin_audit VALUES ('flow_step', OLD.status, NEW.status); END
"""


def audit(store: Any) -> None:
    """Note every change of a state from now on."""
    if store.dialect == "pg":
        with store.connection() as connection:
            connection.execute(AUDIT_PG.replace("fanin.", f'"{store.schema}".'))
    else:
        store._writer.execute(AUDIT_LITE.replace("fanin.", "fanin_"))


def everything(store: Store, clock: Clock) -> None:
    """Walk along every edge once."""
    make(store, 0)
    ended = make(store, 6, attempts=2, then=THEN)
    a, b, c, d, e, _ = claim(store)
    settle(store, done(a), failed(b), retried(c), released(d))
    clock.advance(61)
    store.run(lambda: lease.wake(0))
    held = claim(store)
    assert e.key in {h.key for h in held}
    settle(store, *[done(h) for h in held if h.key != e.key])
    clock.advance(61)
    store.run(lambda: lease.reap(0))
    assert store.run(lambda: redrive.redrive(0, ended, 1, 1)) == 2
    run_all(store)
    by_hand = make(store, 4)
    claim(store, 2)
    for idx, result in enumerate(("1", None, "1", None)):
        store.run(lambda n=idx, text=result: skip.skip(0, by_hand, n, text, deeds.deed()))  # type: ignore[misc]
    for status in ("completed", "failed", "cancelled"):
        opened = make_open(
            store, give_up_after=5.0, policy=Policy(give_up="proceed" if status == "completed" else "abandon")
        )
        running = make(
            store, 2, give_up_after=5.0, policy=Policy(give_up="proceed" if status == "completed" else "abandon")
        )
        append(store, opened, 0, 1)
        claim(store, 1)
        if status == "cancelled":
            cancel(store, opened)
            cancel(store, running)
        clock.advance(6)
        for job_id in store.read(lambda: close.overdue(0)):
            store.run(lambda j=job_id: close.give_up(0, j))  # type: ignore[misc]
        sweep_all(store)
        assert store.run(lambda j=running: redrive.redrive(0, j, 1, 1)) == 2  # type: ignore[misc]
        run_all(store)
    opened = make_open(store)
    append(store, opened, 0, 1)
    seal(store, opened, 1)
    (last,) = claim(store)
    settle(store, failed(last))
    _, events = take(store, 3, seconds=-1.0)
    claim_id, again = take(store)
    assert {event.key for event in events} <= {event.key for event in again}
    gone, waits, sticks, *rest = (event.key for event in again)
    said = [outbox.Said(gone, "mark"), outbox.Said(waits, "refuse"), outbox.Said(sticks, "park", error="no")]
    said += [outbox.Said(key, "release") for key in rest]
    assert store.run(lambda: outbox.settle(0, claim_id, said)) == []
    assert store.run(lambda: outbox.retry(0)) == 1
    leave_outputs(store)
    walk_effects(store)
    walk_flows(store, clock)


def leave_outputs(store: Store) -> None:
    make(store, 2)
    counts, fails = claim(store)
    for held in (counts, fails):
        for name in ("done", "half"):
            assert store.run(lambda h=held, n=name: outputs.stage(h, n, "/x"))  # type: ignore[misc]
        for _ in range(2):
            assert store.run(lambda h=held: outputs.mark_ready(h, "done", 3, "digest"))  # type: ignore[misc]
    for name in ("done", "half"):
        assert store.run(lambda n=name: outputs.stage(counts, n, "/x"))  # type: ignore[misc]
    assert store.run(lambda: outputs.mark_ready(counts, "done", 3, "digest"))
    settle(store, done(counts), failed(fails))
    assert store.run(lambda: outputs.keep(0, 0.0)) == 1
    lost = store.read(lambda: outputs.lost(0, 0.0))
    assert store.run(lambda: outputs.mark_swept(0, lost)) == 3


def walk_effects(store: Store) -> None:
    job_id = make(store, 1)
    (held,) = claim(store)
    for last in ("mark", "leave"):  # by the part's own attempt
        mine = intent(f"taken up, {last}")
        begin(store, held, mine, seconds=0.0)
        again = begin(store, held, mine)
        if last == "mark":
            said(store, again, "mark")
    ways = [("refused", False), ("in doubt", True)]
    for way, doubtful in ways:
        for _ in range(2):
            said(store, begin(store, held, intent(way)), "refuse", doubtful=doubtful)
    names = ["calls again", "waits", "late", "by hand", "failed"]
    settle(store, wanting(held, *map(intent, ["taken up, leave", "refused", "in doubt", "left", *names])))

    def call(name: str, seconds: float = 60.0) -> Call:
        (one,) = called(store, name, seconds=seconds)
        return one

    def reverse() -> Txn[Rows]:
        return (yield advance.SQL.reverse_effects(bucket=0, job_id=job_id, by_hand=True))

    call("calls again", 0.0)
    said(store, call("calls again"), "mark")
    said(store, waits := call("waits"), "refuse")
    said(store, waits, "mark")
    assert len(store.run(reverse)) == 3
    said(store, late := call("late"), "refuse", final=True)
    said(store, late, "mark")
    said(store, call("failed"), "refuse", final=True)
    other = make(store, 1)
    (held,) = claim(store)
    settle(store, wanting(held, *(intent(f"{n}") for n in range(4)), intent("once", "at_most_once")))
    once = call("once", 0.0)
    assert store.run(lambda: effect.expire(0)) == [once.where]
    said(store, once, "mark")

    def by_hand(name: str, done: bool) -> None:
        store.run(lambda: effect.by_hand(0, (other, 0, name), done, None, None))

    for name, doubtful in (("0", False), ("1", True), ("2", True)):
        said(store, call(name), "refuse", final=True, doubtful=doubtful)
    assert len(store.run(lambda: effect.retry(0, [(other, 0, "0"), (other, 0, "1")], 1))) == 2
    by_hand("0", True)
    by_hand("1", False)
    by_hand("1", True)
    by_hand("2", False)
    said(store, call("3"), "refuse", final=True, doubtful=True)
    by_hand("3", True)
    assert store.run(lambda: effect.cancel(0, job_id)) == 4  # refused, left, by hand, failed


def walk_flows(store: Store, clock: Clock) -> None:
    numbers = iter(range(10, 100))

    def begun(steps: dict[str, str], **options: Any) -> str:
        return flows.start(store, steps, number=next(numbers), **options)

    chain = begun({"a": "", "b": "a"})
    for name in ("a", "b"):
        flows.end(store, chain, name)
    failing = begun({"a": "", "b": "a"})
    flows.fail(store, failing, "a")
    assert flows.again(store, failing) == 2
    stopped = begun({"a": "", "b": "a"}, give_up_after=5.0)
    late = begun({"a": "", "b": "a"}, give_up_after=5.0, give_up_policy="proceed")
    assert flows.cancel(store, stopped)
    clock.advance(6)
    assert store.run(lambda: flow.give_up(0, late))
    flows.cancel_left(store)
    sweep_all(store)
    assert flows.again(store, stopped) == 2
    ending = begun({"a": "", "b": ""})
    flows.fail(store, ending, "a")
    flows.cancel_left(store)
    for stop in (flows.cancel, lambda s, f: flows.fail(s, f, "b")):
        for undone, by_hand in (([], ["a", "b"]), (["b"], []), (["a"], [])):  # from the state in which it stops
            saga = begun({"a": "", "b": "a"}, undo=undone, manual=by_hand)
            flows.end(store, saga, "a")
            stop(store, saga)
            sweep_all(store)
            for name in undone:
                if flows.states(store, saga)[name] == "undoing":
                    flows.undo(store, saga, name)
    for undo_ends in (False, True):
        saga = begun({"a": "", "b": "a", "c": "b"}, undo=["a"], manual=["b"])
        flows.end(store, saga, "a")
        flows.end(store, saga, "b")
        flows.fail(store, saga, "c")
        flows.resolve(store, saga, "b", "nothing_to_undo" if undo_ends else "undone")
        flows.fail(store, saga, "a", undo=True)
        again = begun({"a": "", "b": "a", "c": "b"}, undo=["a"], manual=["b"])
        flows.end(store, again, "a")
        flows.end(store, again, "b")
        flows.fail(store, again, "c")
        flows.resolve(store, again, "b", "not_undone")
        flows.fail(store, again, "a", undo=True)
        flows.resolve(store, again, "a", "not_undone")
        if undo_ends:
            flows.undo_again(store, saga, "a")
            flows.undo(store, saga, "a")
        else:
            flows.resolve(store, saga, "a")
    nothing = begun({"a": "", "b": "a"}, undo=["b"])
    flows.end(store, nothing, "a")
    assert store.run(lambda: flow.cancel(0, nothing))
    flows.fail(store, nothing, "b")  # before it is cancelled
    last = begun({"a": "", "b": "a"}, undo=["a"])
    flows.end(store, last, "a")
    flows.fail(store, last, "b")
    flows.fail(store, last, "a", undo=True)
    flows.resolve(store, last, "a", "nothing_to_undo")
    goes_on = begun({"a": "", "b": "a", "c": "b"}, undo=["a", "b"])
    flows.end(store, goes_on, "a")
    flows.end(store, goes_on, "b")
    flows.fail(store, goes_on, "c")
    flows.fail(store, goes_on, "b", undo=True)
    flows.resolve(store, goes_on, "b")
    partly = begun({"a": ""}, undo=["a"])
    held = flows.held(store, partly, "a")
    said(store, begin(store, held, intent("mail")), "mark")
    settle(store, failed(held))
    flows.undo(store, partly, "a")
    old = begun({"a": "", "b": "a"}, stale=["b"])
    flows.end(store, old, "a")
    clock.advance(6)
    assert flows.end_stale(store) == [flows.job_of(store, old, "b")]
    for swept in (True, False):  # the part of b is held by somebody when it is told what has become of a
        told = begun({"a": "", "b": "a", "c": ""}, conditions={"b": "any"}, joins=["b"])
        flows.fail(store, told, "a")
        held = flows.held(store, told, "b")
        flows.cancel(store, told)
        if swept:
            sweep_all(store)
        assert flows.again(store, told) == 2
        flows.end(store, told, "a")
        settle(store, done(held))
    waits = begun({"a": "", "b": "a", "c": ""}, conditions={"b": "any"})
    flows.fail(store, waits, "a")
    flows.fail(store, waits, "b")
    flows.fail(store, waits, "c")
    assert flows.again(store, waits) == 2
    assert flows.cancel(store, waits)
    whole = begun({"a": ""}, manual=["a"])
    held = flows.held(store, whole, "a")
    said(store, begin(store, held, intent("mail")), "mark")
    settle(store, failed(held))


def test_every_edge_is_walked_and_no_other_change_ever_happens(store: Store, clock: Clock) -> None:
    say(store, "SELECT 1")
    audit(store)
    everything(store, clock)
    seen = {m: {(o, n) for machine, o, n in say(store, "SELECT * FROM fanin.audit") if machine == m} for m in EDGES}
    assert seen == {machine: {(e.source, e.target) for e in edges} for machine, edges in EDGES.items()}


# The documents


def test_the_page_of_states_draws_all_machines_and_lists_every_outcome() -> None:
    text = (ROOT / "docs/states.md").read_text()
    assert re.findall(r"```mermaid\n(.*?)\n```", text, re.DOTALL) == [
        states.diagram(machine) for machine in ("job", "part", "event", "output", "effect", "flow", "step")
    ]
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|", text, re.MULTILINE)
    assert tuple(outcome for outcome, _ in rows) == OUTCOMES
    assert {status for _, status in rows} == set(JOB_ENDED)
    for verb in {e.verb for e in (edge for edges in EDGES.values() for edge in edges)}:
        assert f"`{verb}`" in text


def test_the_page_of_the_protocol_lists_every_invariant_with_its_sentence() -> None:
    text = (ROOT / "docs/protocol.md").read_text()
    assert dict(re.findall(r"^\| (\w\d) \| (.*?) \|$", text, re.MULTILINE)) == check.CHECKS


def test_every_invariant_says_its_sentence_beside_its_query() -> None:
    text = steps.read("check")
    for name, sentence in check.CHECKS.items():
        assert re.search(rf"^-- name: {name}\b.*\n(-- all buckets\n)?-- {re.escape(sentence)}\n", text, re.MULTILINE), (
            name
        )
