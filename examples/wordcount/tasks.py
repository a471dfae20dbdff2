"""Map, group and reduce: count words in batches of files, put them together by first letter, add up each letter.

Workers find this app as ``examples.wordcount.tasks:app``; FANIN_URL is the database, and FANIN_OUTPUTS, on
PostgreSQL, the folder for the groups.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

import fanin

app = fanin.App(os.environ.get("FANIN_URL", "sqlite:///wordcount.db"))
WORD = re.compile("[a-z]+")


class Group(TypedDict):
    """All that was counted of the words with one first letter: an output of the job that has grouped them."""

    job: str
    letter: str


def words(path: str) -> list[str]:
    """The words of a file, in small letters."""
    return WORD.findall(Path(path).read_text(encoding="utf-8", errors="replace").lower())


@app.task
def count(paths: list[str]) -> dict[str, int]:
    """Map: how often each word stands in these files."""
    return Counter(word for path in paths for word in words(path))


@app.task
def group(counts: fanin.Joined[dict[str, int]]) -> list[Group]:
    """Group: one output for each first letter. What is returned is mapped over: a part for each."""
    by_letter: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for found in counts:
        for word, times in found.items():
            by_letter[word[0]].append((word, times))
    part = fanin.current()
    for letter, pairs in by_letter.items():
        part.put(f"{letter}.json", json.dumps(pairs))
    return [Group(job=part.job_id, letter=letter) for letter in sorted(by_letter)]


@app.task
def add_up(group: Group) -> dict[str, int]:
    """Reduce: the sums of one letter."""
    sums: Counter[str] = Counter()
    for output in app.job(group["job"]).outputs(f"{group['letter']}.json"):
        for word, times in json.loads(output.read()):
            sums[word] += times
    return sums


@app.task
def most(letters: fanin.Joined[dict[str, int]]) -> list[tuple[str, int]]:
    """The ten words that stand there most often."""
    pairs = [pair for sums in letters for pair in sums.items()]
    return sorted(pairs, key=lambda pair: (-pair[1], pair[0]))[:10]


def plan(batches: Sequence[list[str]], key: str) -> fanin.Flow:
    """The flow: nothing is written before it is started."""
    flow = app.flow("wordcount", key=key)
    grouped = flow.step(group, after=flow.map(count, batches))
    flow.step(most, after=flow.map(add_up, grouped))
    return flow
