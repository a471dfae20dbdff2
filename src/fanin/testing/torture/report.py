"""What the torture tells people: the table of what was expected and what was found, and what never happened."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from fanin.testing.torture import effects, flows
from fanin.testing.torture.history import History
from fanin.testing.torture.judge import ENDED, Tables, Verdicts, counting_files
from fanin.testing.torture.outside import Outside


class Control(msgspec.Struct, frozen=True):
    """One run with a guard missing. ``seconds`` until it was caught; None: it was not."""

    guard: str
    sentence: str
    seconds: float | None
    by: str


class Account(msgspec.Struct):
    """Everything that one torture has seen."""

    url: str
    seed: int
    broken: str | None
    storm_seconds: float
    calm_seconds: float | None
    faults: dict[str, int]
    figures: dict[str, int]
    points: dict[str, int]
    findings: dict[str, int]
    examples: dict[str, list[str]]
    never: list[str]
    check: list[str]
    controls: list[Control] = msgspec.field(default_factory=list)
    kept: str = ""
    """Where the tables and the histories still are."""

    @property
    def verdict(self) -> str:
        """``FAIL`` for a broken promise, ``INCONCLUSIVE`` where something never happened, else ``PASS``."""
        if self.findings or self.check:
            return "CAUGHT" if self.broken else "FAIL"
        if self.never or any(control.seconds is None for control in self.controls):
            return "INCONCLUSIVE"
        return "INCONCLUSIVE" if self.broken else "PASS"


def figures(tables: Tables, history: History, outside: Outside, swept: int) -> dict[str, int]:
    """The numbers of the table."""
    states: Counter[str] = Counter(part[3] for parts in tables.parts.values() for part in parts.values())
    ended_runs = sum(job[4] if job[2] in ENDED else job[4] - 1 for job in tables.jobs.values())
    events = [facts for per_run in tables.events.values() for facts in per_run.values()]
    outcomes = Counter(facts["outcome"] for facts in events)
    with_successor = {job_id for job_id, job in tables.jobs.items() if job[9]}
    deadline = {job_id for job_id, job in tables.jobs.items() if job[11]}
    deadlines = Counter(
        "first" if "deadline" in (facts["reason"] or "") else "last"
        for facts in events if facts["job_id"] in deadline and facts["outcome"] != "cancelled"
    )  # fmt: skip
    already, done = history.resolved
    by_attempt, by_reaper, closed = history.stale
    acknowledged = sum(
        1 for (_, verb), acks in history.acks.items()
        if verb == "succeed" and any(ack["r"] in ("ok", "last", "replay") for ack in acks)
    )  # fmt: skip
    submitted = sum(line["w"] for line in history.begun.values())
    return {
        "jobs": len(history.begun),
        "reported": states["succeeded"]
        - sum(1 for job_id, idx in tables.nested if tables.parts[job_id][idx][3] == "succeeded"),
        "submitted_parts": submitted,
        "parts": sum(states.values()),
        "succeeded": states["succeeded"],
        "failed": states["failed"],
        "abandoned": states["abandoned"],
        "runs": sum(job[4] for job in tables.jobs.values()),
        "ended_runs": ended_runs,
        "redriven_runs": sum(job[4] - 1 for job in tables.jobs.values()),
        "events": len(events),
        "all_events": len(tables.keys),
        "successors_due": sum(
            1 for facts in events if facts["job_id"] in with_successor and facts["status"] == "completed"
        ),
        "successors": sum(tables.children.values()),
        "stripes": len(tables.stripes),
        "acknowledged": acknowledged,
        "bodies": history.bodies,
        "stale_by_attempt": by_attempt,
        "stale_by_reaper": by_reaper,
        "refused_closed": closed,
        "unknown_already_done": already,
        "unknown_done_again": done,
        "released": sum(1 for (_, verb) in history.acks if verb == "release"),
        "give_up_first": deadlines["first"],
        "last_part_first": deadlines["last"],
        "cancel_first": history.cancels[True],
        "cancel_too_late": history.cancels[False],
        "too_many_failures": outcomes["too_many_failures"],
        "deliveries": sum(history.delivered.values()),
        "applied": sum(outside.applied.values()),
        "mailing_parts": len(history.mails),
        "mails": sum(map(len, history.mails.values())),
        "mail_calls": history.mail_calls,
        "mail_repeats": history.mail_calls - len(history.mails),
        **flows.figures(tables, history),
        **effects.figures(tables, history, outside),
        "outputs": len(counting_files(tables)),
        "files": len(outside.files),
        "outputs_swept": swept,
        "quorums": sum(1 for facts in events if "quorum" in (facts["reason"] or "") and facts["status"] == "completed"),
    }


def never(account: Account, postgres: bool, own_server: bool) -> list[str]:
    """Faults and races that did not happen: without them the run has shown nothing about them."""
    wanted = {
        "a worker was killed": account.faults.get("kills", 0),
        "the submitter was killed": account.faults.get("driver_kills", 0),
        "a zombie came back": account.faults.get("zombies", 0),
        "a worker drained": account.faults.get("drains", 0),
        "the clock was moved": account.faults.get("clock_moves", 0),
    }
    if postgres:
        for kind in ("request", "reply", "late"):
            wanted[f"a COMMIT was cut ({kind})"] = account.faults.get(f"cut_{kind}", 0)
        wanted["an unknown commit was already done"] = account.figures["unknown_already_done"]
    if own_server:
        wanted["the server was restarted"] = account.faults.get("restarts", 0)
    for sentence, name in (
        ("a stale report was refused", "stale_by_attempt"),
        ("a report came after its job was closed", "refused_closed"),
        ("a commit was said again and done", "unknown_done_again"),
        ("a worker gave parts back", "released"),
        ("give up came first", "give_up_first"),
        ("the last part came before the give up", "last_part_first"),
        ("a cancel came first", "cancel_first"),
        ("a cancel came too late", "cancel_too_late"),
        ("a job had too many failures", "too_many_failures"),
        ("a quorum ended a job", "quorums"),
        ("a job was redriven", "redriven_runs"),
        ("an event was delivered", "deliveries"),
        ("a call outside was repeated", "mail_repeats"),
        ("a part ended with a nested job", "nested_jobs"),
        ("a flow was undone", "flows_compensated"),
        ("an effect was called again", "effect_repeats"),
        ("the answer of an effect was lost", "effects_unanswered"),
        ("an effect that may not be repeated stayed in doubt", "once_unknown"),
        ("an output that could not count was swept", "outputs_swept"),
    ):
        wanted[sentence] = account.figures[name]
    wanted |= {f"crash point {name} was passed": times for name, times in account.points.items()}
    return [sentence for sentence, times in wanted.items() if not times]


def lines(account: Account) -> list[str]:
    """The report of a torture, without its last line."""
    f, n = account.faults, account.figures
    found = account.findings
    cut = [f.get(f"cut_{kind}", 0) for kind in ("request", "reply", "late")]
    told = [f"storm {account.storm_seconds:.0f} s: {_n(n['jobs'])} jobs, {_n(n['flows'])} flows"]
    told.append(
        f"  killed {_n(f.get('kills', 0))} workers, {f.get('kills_at_points', 0)} of them at a crash point, and the "
        f"submitter {f.get('driver_kills', 0)} times   paused past the lease {f.get('paused_past_lease', 0)}, "
        f"{f.get('zombies', 0)} with finished parts (zombies)"
    )
    rest = f"  drained {f.get('drains', 0)}   clock moved {f.get('clock_moves', 0)} times"
    if "connections" in f:
        rest += f"   cut in COMMIT {sum(cut)} ({cut[0]} before, {cut[1]} after, {cut[2]} late), reset {f['resets']}"
    if f.get("restarts"):
        rest += f"   server crashed {f['restarts']} times"
    told.append(rest)
    if account.calm_seconds is None:
        told.append("calm: NOT everything ended before the deadline")
    else:
        told.append(f"calm: everything ended after {account.calm_seconds:.1f} s without faults")
    lost, changed = found.get("acknowledged results lost", 0), found.get("acknowledged results changed", 0)
    due = n["submitted_parts"] + n["successors_due"] + n["nested_due"] + n["flow_parts"]
    told += [
        _row("", "expected", "found", ""),
        _row("parts accounted for", due, n["succeeded"] + n["failed"] + n["abandoned"],
             f"lost {found.get('parts lost', 0)}, counted twice {found.get('counted twice', 0)} (succeeded "
             f"{_n(n['succeeded'])}, failed {_n(n['failed'])}, abandoned {_n(n['abandoned'])})"),
        _row("runs ended", n["runs"], n["ended_runs"],
             f"never {found.get('runs never ended', 0)}, twice {found.get('runs ended twice', 0)} "
             f"({n['redriven_runs']} by redrive)"),
        _row("events", n["ended_runs"], n["events"],
             f"missing {found.get('events missing', 0)}, too many {found.get('events too many', 0)}"),
        _row("successors", n["successors_due"], n["successors"],
             f"missing {found.get('successors missing', 0)}, too many {found.get('successors too many', 0)}"),
        _row("events delivered", f">= {_n(n['all_events'])}", n["deliveries"],
             f"at least once; skipped {found.get('events skipped', 0)}, applied once {n['applied']}, twice "
             f"{found.get('events applied twice', 0)}"),
        _row("nested parts", n["nested_due"], n["nested_parts"],
             f"of {_n(n['nested_jobs'])} nested jobs, doubled {found.get('nested jobs doubled', 0)}"),
        _row("flows", n["flows"], n["flows_ended"],
             f"compensated {n['flows_compensated']} of {n['flows_doomed']} that must be, "
             f"parts undone {_n(n['undone'])}, undone twice {found.get('undone twice or for nothing', 0)}, "
             f"out of order {found.get('undone out of order', 0)}"),
        _row("effects outside", n["mailing_parts"] + n["effects"], n["mails"] + n["effects_done"],
             f"net twice {found.get('effects outside twice', 0)} (calls {_n(n['mail_calls'] + n['effect_calls'])})"),
        _row("effects at most once", n["once"], n["once_done"] + n["once_failed"] + n["once_unknown"],
             f"called twice {found.get('calls repeated that may not be', 0)}, failed {n['once_failed']}, unknown "
             f"{n['once_unknown']}"),
        _row("outputs that count", n["outputs"], n["outputs"] - found.get("outputs lost", 0),
             f"left over {found.get('outputs left over', 0)}, swept {_n(n['outputs_swept'])}"),
        _row("acknowledged results", n["acknowledged"],
             n["acknowledged"] - lost - changed, f"lost {lost}, changed {changed}"),
        _row("results of a logged attempt", n["reported"],
             n["reported"] - found.get("results that their holder never reported", 0), ""),
        _row("counters equal their parts", n["stripes"],
             n["stripes"] - found.get("counters that differ from their parts", 0), ""),
        _row("bodies executed", f">= {_n(n['succeeded'] + n['failed'])}", n["bodies"],
             "more than once where a worker was lost; counted once"),
        _row("stale reports refused", "-", n["stale_by_attempt"] + n["stale_by_reaper"] + n["refused_closed"],
             f"by a later attempt {n['stale_by_attempt']}, by the reaper {n['stale_by_reaper']}, job closed "
             f"{n['refused_closed']}"),
        _row("unknown commits resolved", "-", n["unknown_already_done"] + n["unknown_done_again"],
             f"already done {n['unknown_already_done']}, done by the repeat {n['unknown_done_again']}"),
    ]  # fmt: skip
    told.append(
        f"races met: give up first {n['give_up_first']}, last part first {n['last_part_first']}; cancel first "
        f"{n['cancel_first']}, too late {n['cancel_too_late']}; redriven {n['redriven_runs']}; quorums {n['quorums']}; "
        f"too many failures {n['too_many_failures']}"
    )
    rarest = min(account.points, key=lambda name: account.points[name])
    told.append(f"crash points passed: {len(account.points)} of {len(account.points)}, the rarest {rarest} "
                f"{account.points[rarest]} times" if account.points[rarest] else
                f"crash points passed: {sum(1 for times in account.points.values() if times)} of "
                f"{len(account.points)}")  # fmt: skip
    told += [f"BROKEN  {kind}: {times}" for kind, times in found.items()]
    told += [f"        {example}" for examples in account.examples.values() for example in examples[:2]]
    told += [f"BROKEN  fanin check {said}" for said in account.check]
    told += [f"never happened: {sentence}" for sentence in account.never]
    told += [f"kept: {account.kept}"] if account.kept else []
    return told


def control_lines(controls: list[Control]) -> list[str]:
    """The same storm with one guard missing, each to be caught."""
    told = ["control: the same storm, with one guard removed at a time"] if controls else []
    for control in controls:
        result = "NOT CAUGHT" if control.seconds is None else f"CAUGHT after {control.seconds:.1f} s"
        told.append(f"  {control.guard:<10} {result:<19} {control.by or control.sentence}")
    return told


def summarize(found: Verdicts) -> str:
    """The most telling finding, on one line."""
    return ", ".join(f"{kind} {times}" for kind, times in found.counts.most_common(2))


def _row(name: str, expected: Any, found: Any, remark: str) -> str:
    return f"  {name:<28}{_n(expected):>10}{_n(found):>10}   {remark}".rstrip()


def _n(value: Any) -> str:
    return f"{value:,}".replace(",", " ") if isinstance(value, int) else str(value)
