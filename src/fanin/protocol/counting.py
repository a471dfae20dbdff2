"""Parts that have ended are counted down, in two levels: their stripes, then the jobs' open stripes.

Whoever takes the last open stripe of a job away ends it, and so does who finds that its policy is decided.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import msgspec

from fanin.domain import identity, policy
from fanin.domain.errors import Refused
from fanin.domain.events import PAYLOAD_VERSION, PartFailed
from fanin.domain.policy import Counts, Ending, Policy
from fanin.protocol import growth
from fanin.protocol.growth import Spawner
from fanin.protocol.steps import Room, Rows, Txn, one

SQL = Room("counting")

Change = tuple[str, int, str]
"""(job id, stripe, ``succeeded`` or ``failed``): one part that has just ended."""


Endings = dict[str, tuple[Ending, Counts]]
"""Job id to how it ends, and with which counts."""


Failed = tuple[str, int, int, str | None]
"""(job id, idx, attempt, error as JSON): a part that has just failed for good."""

NOBODY: Mapping[str, Sequence[Spawner]] = {}
UNTOLD: Mapping[str, Sequence[Failed]] = {}


class Rule(NamedTuple):
    """What a job is judged by: its policy, and its width if it grows."""

    policy: Policy
    width: int | None


class Counted(msgspec.Struct, frozen=True):
    """What a count found: jobs that were closed before and (job id, idx) of parts whose spawns are refused (in either
    case the batch must be rolled back), and how jobs end by it."""

    closed: frozenset[str] = frozenset()
    refused: dict[tuple[str, int], Refused] = {}
    endings: Endings = {}
    going_on: bool = False
    """Whether the row of a job is held now that does not end."""


def count(
    bucket: int,
    changes: Iterable[Change],
    failed: Iterable[Failed] = (),
    spawners: Mapping[str, Sequence[Spawner]] = NOBODY,
) -> Txn[Counted]:
    """Count ended parts down, and add those that they spawn. Says which jobs that decides, by the last part or early by
    their policy; the caller ends them.

    ``failed`` says more of those that failed, for jobs that have an event for each.

    Goes through the jobs once for the stripes and once for the job rows, each time in ascending order.
    """
    tally = Counter(changes)
    rules, told = yield from _of_failed(bucket, tally, failed)
    closed: set[str] = set()
    refused: dict[tuple[str, int], Refused] = {}
    early: Endings = {}
    emptied: Counter[str] = Counter()
    for job_id, keys in groupby(sorted({key[:2] for key in tally}), key=lambda key: key[0]):
        grows = job_id in spawners
        judges = grows or (job_id in rules and rules[job_id].policy.judges_failures)
        left: dict[int, tuple[int, bool]] = {}
        if judges:
            yield SQL.lock_stripes(bucket=bucket, job_id=job_id)
        for _, stripe in keys:
            numbers = _numbers(bucket, tally, job_id, stripe)
            counted = yield SQL.count_down(**numbers, locked=judges)
            if not counted and not judges:
                # Closed, or successes are judged too; the stripes of a job agree in both. Only a judged one may be
                # locked with all others now: a write that waited for a close keeps its one row locked, out of order.
                judges = any(judged for (judged,) in (yield SQL.judged(bucket=bucket, job_id=job_id, stripe=stripe)))
                if judges:
                    yield SQL.lock_stripes(bucket=bucket, job_id=job_id)
                    counted = yield SQL.count_down(**numbers, locked=True)
            if not counted:
                closed.add(job_id)
                break
            ((left[stripe]),) = counted
        if grows and job_id not in closed:
            grown = yield from growth.grow(bucket, job_id, spawners[job_id])
            refused |= {(job_id, idx): problem for idx, problem in grown.refused.items()}
            left |= grown.left
        emptied[job_id] = sum(remaining == 0 and bool(sealed) for remaining, sealed in left.values())
        if judges and job_id not in closed:
            verdict = yield from _judge(bucket, job_id, rules.get(job_id))
            if verdict is not None:
                early[job_id] = verdict
    if closed or refused:
        return Counted(frozenset(closed), refused)
    return (yield from _decided(bucket, early, emptied, told))


def count_held(
    bucket: int, changes: Iterable[Change], failed: Iterable[Failed], judging: frozenset[str]
) -> Txn[Counted]:
    """`count` for a caller that holds the stripes and has found them open; of the jobs in ``judging`` all of them."""
    tally = Counter(changes)
    rules, told = yield from _of_failed(bucket, tally, failed)
    counted: dict[tuple[str, int], Rows] = {}
    for job_id, stripe in sorted({key[:2] for key in tally}):  # all are sent before any is looked at
        counted[job_id, stripe] = yield SQL.count_down(**_numbers(bucket, tally, job_id, stripe), locked=True)
    emptied: Counter[str] = Counter()
    for (job_id, _), rows in counted.items():
        remaining, sealed = one(rows)
        emptied[job_id] += remaining == 0 and bool(sealed)
    early: Endings = {}
    for job_id in sorted(judging & emptied.keys()):
        verdict = yield from _judge(bucket, job_id, rules.get(job_id))
        if verdict is not None:
            early[job_id] = verdict
    return (yield from _decided(bucket, early, emptied, told))


def _of_failed(
    bucket: int, tally: Mapping[Change, int], failed: Iterable[Failed]
) -> Txn[tuple[dict[str, Rule], dict[str, list[Failed]]]]:
    """Of the jobs with parts that have failed: their rules, and the parts, where the job has an event for each."""
    rules: dict[str, Rule] = {}
    told: dict[str, list[Failed]] = {}
    for job_id in sorted({job_id for job_id, _, status in tally if status == "failed"}):
        text, events, width = one((yield SQL.policy(bucket=bucket, job_id=job_id)))
        rules[job_id] = Rule(policy.decode(text), width)
        if events:
            told[job_id] = sorted(part for part in failed if part[0] == job_id)
    return rules, told


def _numbers(bucket: int, tally: Mapping[Change, int], job_id: str, stripe: int) -> dict[str, Any]:
    succeeded, failed = (tally.get((job_id, stripe, status), 0) for status in ("succeeded", "failed"))
    return {"bucket": bucket, "job_id": job_id, "stripe": stripe, "succeeded": succeeded, "failed": failed}


def _decided(
    bucket: int, early: Endings, emptied: Mapping[str, int], told: Mapping[str, Sequence[Failed]]
) -> Txn[Counted]:
    """The job rows: ``early`` says which jobs their policy ends, ``emptied`` how many stripes have become empty."""
    for job_id in sorted(early):
        yield SQL.close_stripes(bucket=bucket, job_id=job_id)
    natural = yield from emptied_jobs(bucket, {job_id: n for job_id, n in emptied.items() if job_id not in early}, told)
    return Counted(endings={**early, **natural.endings}, going_on=natural.going_on)


def emptied_jobs(
    bucket: int, emptied: Mapping[str, int], told: Mapping[str, Sequence[Failed]] = UNTOLD
) -> Txn[Counted]:
    """Take so many stripes that have just become empty off their jobs, and announce failures, job by job. How the jobs
    end that have none left."""
    counted: dict[str, Rows] = {}
    for job_id in sorted({*(job_id for job_id, n in emptied.items() if n), *told}):
        if job_id in told:
            yield from _announce(bucket, job_id, told[job_id])
        if emptied.get(job_id):
            counted[job_id] = yield SQL.count_stripes(bucket=bucket, job_id=job_id, emptied=emptied[job_id])
    ended = [job_id for job_id, rows in counted.items() if one(rows)[0] == 0]
    known = {}
    for job_id in ended:  # all are asked before any is looked at
        known[job_id] = (yield SQL.policy(bucket=bucket, job_id=job_id)), (yield SQL.sums(bucket=bucket, job_id=job_id))
    endings: Endings = {}
    for job_id, (rule, totals) in known.items():
        counts = _counts(totals)
        endings[job_id] = policy.natural_end(policy.decode(one(rule)[0]), counts), counts
    return Counted(endings=endings, going_on=len(ended) < len(counted) or bool(told.keys() - endings.keys()))


def _announce(bucket: int, job_id: str, failed: Sequence[Failed]) -> Txn[None]:
    """An event for each part of a job that has failed, before that of the job's end."""
    last, run, key, task = one((yield SQL.number_failures(bucket=bucket, job_id=job_id, many=len(failed))))
    rows = []
    for seq, (_, idx, attempt, error) in enumerate(failed, last - len(failed) + 1):
        said = PartFailed(PAYLOAD_VERSION, job_id, run, idx, attempt, *_said(error), key, task)
        rows.append((identity.failed_key(job_id, run, idx), job_id, seq, msgspec.json.encode(said).decode()))
    yield SQL.announce_failures(bucket=bucket, rows=rows)


def _said(error: str | None) -> tuple[str, str]:
    """The kind of a failure and its message."""
    found = msgspec.json.decode(error) if error else {}
    return str(found.get("type", "")), str(found.get("message", ""))


def _judge(bucket: int, job_id: str, known: Rule | None) -> Txn[tuple[Ending, Counts] | None]:
    """The ending that the policy gives a job whose stripes are all locked, while parts of it live or may still come."""
    rule = known or (yield from _rule(bucket, job_id))
    counts = yield from sums(bucket, job_id)
    more = counts.remaining > 0 or not counts.sealed
    ending = policy.close_early(rule.policy, counts, rule.width) if more else None
    return None if ending is None else (ending, counts)


def natural_end(bucket: int, job_id: str) -> Txn[tuple[Ending, Counts]]:
    """How a job ends that has no live part."""
    rule = yield from _rule(bucket, job_id)
    counts = yield from sums(bucket, job_id)
    return policy.natural_end(rule.policy, counts), counts


def _rule(bucket: int, job_id: str) -> Txn[Rule]:
    text, _, width = one((yield SQL.policy(bucket=bucket, job_id=job_id)))
    return Rule(policy.decode(text), width)


def sums(bucket: int, job_id: str) -> Txn[Counts]:
    """The totals over a job's stripes, all of which this transaction holds or knows to be final."""
    return _counts((yield SQL.sums(bucket=bucket, job_id=job_id)))


def _counts(totals: Rows) -> Counts:
    created, remaining, succeeded, failed, sealed = one(totals)
    return Counts(int(created), int(remaining), int(succeeded), int(failed), bool(sealed))
