"""The judge's rules of flows and of nested jobs. What a flow did stands in the results of its parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from fanin.testing.torture.ground import Row

if TYPE_CHECKING:
    from fanin.testing.torture.history import History
    from fanin.testing.torture.judge import Tables, Verdicts

ENDED = {"completed": ("done",), "compensated": ("undone", "nothing_to_undo", "skipped")}
"""How a flow may end here, and what may have become of its steps then."""
Done = dict[str, Any]
"""The result of a part of a step, or of what undid it."""


def live(tables: Tables, found: Verdicts) -> None:
    """What must hold at every instant."""
    for flow_id, flow in tables.flows.items():
        events = tables.flow_events[flow_id]
        if len(events) > 1 or (not events) == (flow[2] in ENDED):
            found.add("flows without their one event", f"{flow_id} is {flow[2]}: {len(events)} events")
    for (job_id, idx), nested in tables.nested.items():
        if len(nested) > 1:
            found.add("nested jobs doubled", f"{job_id}/{idx}: {nested}")
        part = tables.parts.get(job_id, {}).get(idx)
        if part and part[3] == "succeeded" and any(tables.jobs[one][2] != "completed" for one in nested):
            found.add("parts that ended before their nested job", f"{job_id}/{idx}")


def final(tables: Tables, history: History, found: Verdicts) -> None:
    """What must hold when everything has come to its end."""
    by_key = {flow[1]: flow_id for flow_id, flow in tables.flows.items()}
    for number, line in history.trips.items():
        flow_id = by_key.pop(line["k"], None)
        if flow_id is None:
            if number in history.started:
                found.add("flows lost", line["k"])
            continue
        if history.started.get(number, flow_id) != flow_id:
            found.add("flows lost", f"{line['k']} is another one: {flow_id}")
        _flow(flow_id, line, tables, history, found)
    for key, flow_id in by_key.items():
        found.add("flows that nobody started", f"{key}: {flow_id}")
    for (job_id, idx), width in history.nests.items():
        for one in tables.nested.get((job_id, idx), ()):
            if (real := len(tables.parts.get(one, {}))) != width:
                found.add("nested parts lost or doubled", f"{one} of {job_id}/{idx}: {real} of {width}")


def _flow(flow_id: str, line: dict[str, Any], tables: Tables, history: History, found: Verdicts) -> None:
    status, steps = tables.flows[flow_id][2], tables.steps[flow_id]
    if status not in ENDED:
        found.add("flows that never ended", f"{flow_id} is {status}")
        return
    if status != ("compensated" if line["doomed"] else "completed"):
        found.add("flows that ended otherwise than they must", f"{flow_id} is {status}")
    for step in steps:
        if step[3] not in ENDED[status]:
            found.add("steps without an outcome", f"{flow_id} is {status}, its step {step[2]} is {step[3]}")
    for event in tables.flow_events[flow_id]:
        if event["status"] != status or event["steps"] != Counter(step[3] for step in steps):
            found.add("flow events that say otherwise", f"{flow_id} is {status}: {event['status']} {event['steps']}")
    _undone(flow_id, line["n"], [step for step in steps if step[6] is not None], tables, history, found)


def _undone(flow_id: str, number: int, steps: list[Row], tables: Tables, history: History, found: Verdicts) -> None:
    """Each done part of a step is undone once, in the exact reverse of the order in which the steps have ended."""
    compensated = tables.flows[flow_id][2] == "compensated"
    last_undone = 0.0
    first_undo = None
    for step in sorted(steps, key=lambda step: -int(step[6])):
        done, undone = list(_results(step[4], tables)), list(_results(step[5], tables))
        times = Counter(result["n"] for result in undone)
        due = {result["n"] for result in done} if compensated else set()
        for n in due - times.keys():
            found.add("steps not undone", f"{flow_id} {step[2]}/{n}")
        for n, count in times.items():
            if count > 1 or n not in due:
                found.add("undone twice or for nothing", f"{flow_id} {step[2]}/{n}: {count} times")
        bodies = history.undos[number, step[2]]
        if bodies and min(bodies) < last_undone:
            found.add("undone out of order", f"{flow_id}: {step[2]} began before what came after it was undone")
        last_undone = max([last_undone, *(result["at"] for result in undone)])
        first_undo = min([first_undo or last_undone, *(result["began"] for result in undone)])
    for step in steps if compensated else ():
        for result in _results(step[4], tables):
            if first_undo and result["at"] > first_undo:
                found.add("steps that went on while others were undone", f"{flow_id} {step[2]}/{result['n']}")


def _results(job_id: Any, tables: Tables) -> Iterator[Done]:
    """Of the parts of a job that succeeded; where they wait for nested jobs, of those."""
    for idx, part in tables.parts.get(str(job_id), {}).items():
        nested = tables.nested.get((str(job_id), idx), ())
        for one in nested:
            yield from _results(one, tables)
        if not nested and part[3] == "succeeded":
            yield msgspec.json.decode(part[7])


def figures(tables: Tables, history: History) -> dict[str, int]:
    """The numbers of the report."""
    begun = {line["k"]: line for line in history.trips.values()}
    there = [begun[flow[1]] for flow in tables.flows.values() if flow[1] in begun]
    nested = [(key, jobs) for key, jobs in tables.nested.items() if key in history.nests]
    ends = Counter(flow[2] for flow in tables.flows.values())
    return {
        "flows": len(there),
        "flows_ended": ends["completed"] + ends["compensated"],
        "flows_doomed": sum(line["doomed"] for line in there),
        "flows_compensated": ends["compensated"],
        "flow_parts": sum(line["parts"] for line in there),
        "undone": sum(
            1 for steps in tables.steps.values() for step in steps for _ in _results(step[5], tables)
        ),
        "nested_jobs": len(nested),
        "nested_due": sum(history.nests[key] for key, _ in nested),
        "nested_parts": sum(len(tables.parts.get(one, {})) for _, jobs in nested for one in jobs),
    }  # fmt: skip
