"""The judge: reads the tables and the histories, and counts. It knows what must hold, not how it is done."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import msgspec

from fanin.testing.torture import effects, flows
from fanin.testing.torture.ground import Row
from fanin.testing.torture.history import ACCEPTED, History
from fanin.testing.torture.journal import digest
from fanin.testing.torture.outside import Outside

ENDED = ("completed", "failed", "cancelled")


class Verdicts(msgspec.Struct):
    """What a judge has found: violations by kind, with a few examples of each."""

    counts: Counter[str] = msgspec.field(default_factory=Counter)
    examples: dict[str, list[str]] = msgspec.field(default_factory=dict)

    def add(self, kind: str, example: str, times: int = 1) -> None:
        self.counts[kind] += times
        if len(shown := self.examples.setdefault(kind, [])) < 5:
            shown.append(example)

    @property
    def clean(self) -> bool:
        return not self.counts


class Tables:
    """The rows, as the judge thinks of them."""

    def __init__(self, rows: dict[str, list[Row]]) -> None:
        self.jobs = {str(row[0]): row for row in rows["jobs"]}
        self.parts: dict[str, dict[int, Row]] = defaultdict(dict)
        for row in rows["parts"]:
            self.parts[str(row[0])][row[1]] = row
        self.stripes = rows["stripes"]
        self.events: dict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
        for key, job_id, payload in rows["events"]:
            self.events[str(job_id)][int(str(key).rsplit("/", 1)[1])] = msgspec.json.decode(payload)
        self.keys = {str(row[0]) for row in (*rows["events"], *rows["flow_events"])}
        self.flows = {str(row[0]): row for row in rows["flows"]}
        self.steps: dict[str, list[Row]] = defaultdict(list)
        for row in rows["steps"]:
            self.steps[str(row[0])].append(row)
        self.flow_events: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for _, flow_id, payload in rows["flow_events"]:
            self.flow_events[str(flow_id)].append(msgspec.json.decode(payload))
        self.nested: dict[tuple[str, int], list[str]] = defaultdict(list)
        """Part to the jobs for which it waits, or has waited."""
        for row in rows["jobs"]:
            if row[12] is not None:
                self.nested[str(row[12]), row[13]].append(str(row[0]))
        self.outputs = rows["outputs"]
        self.effects = {(str(row[0]), row[1], row[2]): row for row in rows["effects"]}
        self.children: Counter[str] = Counter(
            str(row[8]) for row in rows["jobs"] if row[8] is not None and row[12] is None
        )


def live(tables: Tables, history: History) -> Verdicts:
    """What must hold at every instant, also in the middle of the storm.

    The history must have been read after the tables: a report is written down before it is sent.
    """
    found = Verdicts()
    _counters(tables, found)
    for job_id, job in tables.jobs.items():
        _ends(job_id, job, tables, found)
    for job_id, parts in tables.parts.items():
        for idx, part in parts.items():
            _, _, _, status, attempt, claim_id, allowed, result = part
            token = (job_id, idx, attempt, str(claim_id))
            waited = (job_id, idx) in tables.nested
            if status == "succeeded" and not waited and digest(result) not in history.says.get(token, ()):
                found.add("results that their holder never reported", f"{job_id}/{idx} attempt {attempt}")
            if attempt > allowed:
                found.add("attempts beyond the allowance", f"{job_id}/{idx}: {attempt} of {allowed}")
    for part, keys in history.mails.items():
        if len(keys) > 1:
            found.add("effects outside twice", f"{part[0]}/{part[1]}: {sorted(keys)[:3]}")
    effects.live(tables, history, found)
    flows.live(tables, found)
    for key, contents in history.contents.items():
        if len(contents) > 1:
            found.add("events delivered with another content", key)
    return found


def _counters(tables: Tables, found: Verdicts) -> None:
    counted: dict[tuple[str, int], Counter[str]] = defaultdict(Counter)
    for job_id, parts in tables.parts.items():
        for part in parts.values():
            counted[job_id, part[2]][part[3]] += 1
    for job_id, stripe, created, remaining, succeeded, failed, abandoned in tables.stripes:
        real = counted[str(job_id), stripe]
        expected = (
            sum(real.values()), real["pending"] + real["running"], real["succeeded"], real["failed"], real["abandoned"]
        )  # fmt: skip
        if (created, remaining, succeeded, failed, abandoned) != expected:
            said = f"created {created}, remaining {remaining}, {succeeded}+{failed}+{abandoned}; parts: {dict(real)}"
            found.add("counters that differ from their parts", f"{job_id} stripe {stripe}: {said}")
            if succeeded + failed > expected[2] + expected[3]:
                found.add("counted twice", f"{job_id} stripe {stripe}: {said}")


def _ends(job_id: str, job: Row, tables: Tables, found: Verdicts) -> None:
    _, _, status, outcome, run, succeeded, failed, abandoned, _, has_successor, *_ = job
    events = tables.events.get(job_id, {})
    ended = status in ENDED
    expected = set(range(1, run + 1 if ended else run))
    if missing := expected - events.keys():
        found.add("events missing", f"{job_id} run {min(missing)}")
    if extra := events.keys() - expected:
        found.add("events too many", f"{job_id} ({status}, run {run}) run {max(extra)}")
    proceeded = sum(1 for facts in events.values() if facts["status"] == "completed")
    if has_successor and tables.children[job_id] != proceeded:
        kind = "successors missing" if tables.children[job_id] < proceeded else "successors too many"
        found.add(kind, f"{job_id}: {tables.children[job_id]} for {proceeded} completed runs")
    if not ended:
        return
    facts = events.get(run, {})
    said = (facts.get("status"), facts.get("outcome"), facts.get("succeeded"), facts.get("failed"),
            facts.get("abandoned"))  # fmt: skip
    if facts and said != (status, outcome, succeeded, failed, abandoned):
        found.add("runs ended twice", f"{job_id} run {run}: {status} {outcome}, its event says {said[:2]}")
    real = Counter(part[3] for part in tables.parts.get(job_id, {}).values())
    left = real["abandoned"] + real["pending"] + real["running"]
    if (succeeded, failed, abandoned) != (real["succeeded"], real["failed"], left):
        told = f"ended with {succeeded}+{failed}+{abandoned}, its parts: {dict(real)}"
        found.add("contributions after the end", f"{job_id}: {told}")


def final(tables: Tables, history: History, found: Verdicts) -> None:
    """What must hold when everything has come to its end."""
    for job_id, job in tables.jobs.items():
        if job[2] not in ENDED:
            found.add("runs never ended", f"{job_id} is {job[2]} in run {job[4]}")
    for job_id, parts in tables.parts.items():
        for idx, part in parts.items():
            if part[3] in ("pending", "running"):
                found.add("parts lost", f"{job_id}/{idx} is still {part[3]} at attempt {part[4]}")
            if part[4] < history.highest.get((job_id, idx), 0):
                found.add("attempt numbers that fell", f"{job_id}/{idx}: {part[4]}")
    _submitted(tables, history, found)
    _acknowledged(tables, history, found)
    flows.final(tables, history, found)
    for line in history.redrives:
        if line["j"] in tables.jobs and tables.jobs[line["j"]][4] < line["run"]:
            found.add("redrives lost", f"{line['j']} run {line['run']}")
    for verdict in ("conflict", "unknown"):
        if times := history.verdicts[verdict]:
            found.add(f"reports answered with {verdict}", f"{times} times", times)
    for why in history.wrong:
        found.add("calls that were refused wrongly", why)


def beyond(tables: Tables, history: History, outside: Outside, found: Verdicts) -> None:
    """What must have come of it outside, when everything has come to its end and was swept."""
    for key in tables.keys - history.delivered.keys():
        found.add("events skipped", key)
    for key in history.delivered.keys() - tables.keys:
        found.add("events that nobody wrote", key)
    for key in history.delivered.keys() - outside.applied.keys():
        found.add("events not applied", key)
    for key, times in outside.applied.items():
        if times > 1:
            found.add("events applied twice", f"{key}: {times} times")
    counting = counting_files(tables)
    for path in counting - outside.files:
        found.add("outputs lost", path)
    for path in outside.files - counting:
        found.add("outputs left over", path)
    effects.outcomes(tables, history, outside, found)


def counting_files(tables: Tables) -> set[str]:
    """The files of the claims under which parts have succeeded."""
    found = set()
    for job_id, idx, claim_id, attempt, name, status in tables.outputs:
        part = tables.parts.get(str(job_id), {}).get(idx)
        if part and part[3] == "succeeded" and str(part[5]) == str(claim_id) and status in ("ready", "kept"):
            found.add(f"{job_id}/{idx}/{attempt}-{claim_id}/{name}")
    return found


def _submitted(tables: Tables, history: History, found: Verdicts) -> None:
    by_key: dict[str, list[str]] = defaultdict(list)
    for job_id, job in tables.jobs.items():
        if job[1] is not None:
            by_key[job[1]].append(job_id)
    for number, line in history.begun.items():
        jobs = by_key.pop(line["k"], [])
        if history.submitted[number] and set(jobs) != history.submitted[number]:
            found.add("submits lost or doubled", f"{line['k']}: {jobs}, acknowledged {history.submitted[number]}")
        for job_id in jobs:
            if missing := set(range(line["w"])) - tables.parts.get(job_id, {}).keys():
                found.add("parts lost", f"{job_id}/{min(missing)} does not exist", len(missing))
            if extra := tables.parts.get(job_id, {}).keys() - set(range(line["w"])):
                found.add("parts that nobody submitted", f"{job_id}/{min(extra)}", len(extra))
    for key, jobs in by_key.items():
        found.add("jobs that nobody submitted", f"{key}: {jobs}")


def _acknowledged(tables: Tables, history: History, found: Verdicts) -> None:
    winners: Counter[tuple[str, int]] = Counter()
    for (token, verb), acks in history.acks.items():
        job_id, idx, attempt, claim_id = token
        accepted = [ack for ack in acks if ack["r"] in ACCEPTED]
        if len(accepted) > 1:
            found.add("counted twice", f"{job_id}/{idx}: attempt {attempt} was accepted {len(accepted)} times")
        if verb != "succeed" or not any(ack["r"] in (*ACCEPTED, "replay") for ack in acks):
            continue
        winners[job_id, idx] += 1
        part = tables.parts.get(job_id, {}).get(idx)
        if part is None or part[3] != "succeeded" or (part[4], str(part[5])) != (attempt, claim_id):
            state = None if part is None else part[3:6]
            found.add("acknowledged results lost", f"{job_id}/{idx} attempt {attempt}: the table says {state}")
        elif any(ack["d"] != digest(part[7]) for ack in acks if ack["r"] in (*ACCEPTED, "replay")):
            found.add("acknowledged results changed", f"{job_id}/{idx} attempt {attempt}")
    for (job_id, idx), times in winners.items():
        if times > 1:
            found.add("counted twice", f"{job_id}/{idx}: results of {times} attempts were accepted")
