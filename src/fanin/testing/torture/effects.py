"""The judge's rules of effects: who may have one, how often it may be called, and what must have come of it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from fanin.testing.torture.outside import Outside
from fanin.testing.torture.receiver import NOW

if TYPE_CHECKING:
    from fanin.testing.torture.history import History
    from fanin.testing.torture.judge import Tables, Verdicts

Effect = tuple[str, int, str]
"""(job, idx, name)."""


def live(tables: Tables, history: History, found: Verdicts) -> None:
    """What must hold at every instant."""
    for effect, row in tables.effects.items():
        job_id, idx, name = effect
        part = tables.parts.get(job_id, {}).get(idx)
        if name != NOW and (part is None or part[3] != "succeeded"):
            found.add("effects of parts that did not succeed", f"{_key(effect)}: {part and part[3]}")
        if row[3] == "at_most_once" and history.effect_calls[effect] > 1:
            found.add("calls repeated that may not be", f"{_key(effect)}: {history.effect_calls[effect]} calls")
    for job_id, idx, name in wanted(tables, history) - tables.effects.keys():
        found.add("effects lost", f"{_key((job_id, idx, name))}: it was asked for by an accepted attempt")


def outcomes(tables: Tables, history: History, outside: Outside, found: Verdicts) -> None:
    """What must have come of them, when everything has come to its end."""
    for effect, times in outside.done.items():
        if times > 1:
            found.add("effects outside twice", f"{_key(effect)}: {times} times")
    for effect in history.effect_calls.keys() - tables.effects.keys():
        found.add("calls that nobody asked for", _key(effect))
    asked = wanted(tables, history)
    for effect, row in tables.effects.items():
        mode, status = row[3], row[4]
        done = outside.done[effect]
        if status not in ("done", "failed", "unknown"):
            found.add("effects that never ended", f"{_key(effect)} is {status}")
        elif status == "unknown" and mode != "at_most_once" and effect in asked:
            found.add("effects left in doubt", f"{_key(effect)}: its mode is {mode}")
        elif (status == "done" and not done) or (status == "failed" and done):
            found.add("effects other than they say", f"{_key(effect)} is {status}, the receiver did it {done} times")


def wanted(tables: Tables, history: History) -> set[Effect]:
    """What the accepted attempts have asked for."""
    return {
        (job_id, idx, name)
        for (job_id, idx, attempt), names in history.wishes.items()
        if (part := tables.parts.get(job_id, {}).get(idx)) and part[3] == "succeeded" and part[4] == attempt
        for name in names
    }


def figures(tables: Tables, history: History, outside: Outside) -> dict[str, int]:
    """The numbers of the report. A call that may be repeated is one of the two modes in which net one is promised."""
    once = Counter(row[4] for row in tables.effects.values() if row[3] == "at_most_once")
    due = [effect for effect, row in tables.effects.items() if row[3] != "at_most_once" and row[4] == "done"]
    calls = Counter({effect: times for effect, times in history.effect_calls.items() if effect in tables.effects})
    return {
        "effects": len(due),
        "effects_done": sum(1 for effect in due if outside.done[effect]),
        "effect_calls": sum(times for effect, times in calls.items() if tables.effects[effect][3] != "at_most_once"),
        "effect_repeats": sum(times - 1 for times in calls.values()),
        "effects_unanswered": history.unanswered,
        "effects_late": history.late,
        "once": sum(once.values()),
        "once_done": once["done"],
        "once_failed": once["failed"],
        "once_unknown": once["unknown"],
    }


def _key(effect: Effect) -> str:
    return "{}/{}/{}".format(*effect)
