"""Races of those who create a job, add to it and seal it."""

from __future__ import annotations

from functools import partial
from typing import Any

from fanin.domain.errors import NotAllowedNow
from fanin.protocol import submit
from fanin.testing.explorer import Actor
from tests.races.arena import Arena, canceller, said
from tests.races.scenarios import race
from tests.races.stage import BUCKET

# Creating.


def creator(name: str, arena: Arena, parts: int, **options: Any) -> Actor:
    job = arena.new("twice", **options)
    return said(name, lambda: submit.create(job, parts, lambda: [["1"] * parts]), "NEW", "SAME")


@race("create and create with one key", "A=NEW B=SAME", "A=SAME B=NEW", preemptions=2)
def create_and_create(arena: Arena) -> list[Actor]:
    return [creator("A", arena, 2), creator("B", arena, 2)]


@race("create and create with one key and another content", "A=NEW B=CONFLICT", "A=CONFLICT B=NEW", preemptions=2)
def create_and_create_other(arena: Arena) -> list[Actor]:
    return [creator("A", arena, 2), creator("B", arena, 3, request_hash="other")]


def sealing(name: str, job_id: str, planned: int) -> Actor:
    return said(name, lambda: submit.seal(BUCKET, job_id, planned, None, False), "SEALED", "BEFORE")


def appending(name: str, job_id: str, first: int) -> Actor:
    return said(name, lambda: submit.append(BUCKET, job_id, first, ["1"]), "ADDED", "THERE")


def seal_what_is_open(arena: Arena) -> None:
    """The creator's next step, if the race refused its seal."""
    job_id = arena.new().id
    for count in (1, 2, 3):
        try:
            arena.store.run(partial(submit.seal, BUCKET, job_id, count, None, False))
            return
        except NotAllowedNow:
            continue


@race("append and seal", "N=ADDED L=REFUSED", "N=REFUSED L=SEALED", after=seal_what_is_open)
def append_and_seal(arena: Arena) -> list[Actor]:
    job_id = arena.open(1, stripes=2)
    return [appending("N", job_id, 1), sealing("L", job_id, 1)]


@race("append and append of one part", "N=ADDED M=THERE", "N=THERE M=ADDED", after=seal_what_is_open, preemptions=2)
def append_and_append(arena: Arena) -> list[Actor]:
    job_id = arena.open(1)
    return [appending("N", job_id, 1), appending("M", job_id, 1)]


@race("seal and seal", "L=SEALED M=BEFORE", "L=BEFORE M=SEALED")
def seal_and_seal(arena: Arena) -> list[Actor]:
    job_id = arena.open(2, stripes=2)
    return [sealing("L", job_id, 2), sealing("M", job_id, 2)]


@race("seal and the last completion", "A=LAST L=SEALED", "A=OK L=SEALED")
def seal_and_completion(arena: Arena) -> list[Actor]:
    job_id = arena.open(1)
    (claim,) = arena.claims(1)
    return [arena.succeeds("A", claim), sealing("L", job_id, 1)]


@race(
    "seal and two last completions, a counter each",
    "A=OK B=OK L=SEALED", "A=LAST B=OK L=SEALED", "A=OK B=LAST L=SEALED",
    preemptions=1, always=2,
)  # fmt: skip
def seal_and_completions(arena: Arena) -> list[Actor]:
    job_id = arena.open(2, stripes=2)
    one, two = arena.claims(2)
    return [arena.succeeds("A", one), arena.succeeds("B", two), sealing("L", job_id, 2)]


@race("append and cancel", "N=ADDED C=CANCELLED", "N=REFUSED C=CANCELLED")
def append_and_cancel(arena: Arena) -> list[Actor]:
    job_id = arena.open(1)
    return [appending("N", job_id, 1), canceller("C", job_id)]


@race("seal and cancel", "L=SEALED C=CANCELLED", "L=BEFORE C=CANCELLED")
def seal_and_cancel(arena: Arena) -> list[Actor]:
    job_id = arena.open(1, stripes=2)
    return [sealing("L", job_id, 1), canceller("C", job_id)]


@race("the seal of an empty job and cancel", "L=SEALED C=LATE", "L=BEFORE C=CANCELLED")
def seal_of_nothing_and_cancel(arena: Arena) -> list[Actor]:
    job_id = arena.open(0)
    return [sealing("L", job_id, 0), canceller("C", job_id)]
