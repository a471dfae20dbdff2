"""What a person means by the name of a job or a flow: its id, the beginning of one, or its key."""

from __future__ import annotations

import shlex
from typing import Any

from fanin.domain import identity
from fanin.domain.errors import UnknownJob, shown
from fanin.protocol import flow, read
from fanin.protocol.steps import Txn


def _may_be(name: Any) -> bool:
    return isinstance(name, str) and name != "" and name.isprintable()


def find_flow(name: str, buckets: int) -> Txn[str]:
    """The one flow that ``name`` means: an id, its beginning, or a key. Raises `UnknownJob`."""
    if not _may_be(name):
        raise UnknownJob(f"{shown(name)} names no flow: give an id, the beginning of one, or a key")
    keyed = identity.keyed_flow_id(name)
    if (yield from flow.row(identity.bucket_of(keyed, buckets), keyed)) is not None:
        return keyed
    found = yield from flow.like(range(buckets), name)
    if len(found) != 1:
        several = f"begins several ids ({', '.join(found)}): give more of it" if found else "names no flow"
        raise UnknownJob(f"{shown(name)} {several}; `fanin flows` lists them")
    return found[0]


def find_job(name: str, buckets: int) -> Txn[str]:
    """The one job that ``name`` means: an id, its beginning, or a key. Raises `UnknownJob`."""
    if not _may_be(name):  # an empty one begins every id
        raise UnknownJob(f"{shown(name)} names no job: give an id, the beginning of one, or a key")
    found = yield from read.jobs_like(range(buckets), name)
    if name in found:
        return name
    if not found:
        keyed = identity.keyed_job_id(name)
        bucket = identity.bucket_of(keyed, buckets)
        if (yield from read.job(bucket, keyed)) is not None:
            return keyed
        yield from _refuse_flow(name, buckets)
        raise UnknownJob(f"there is no job {shown(name)}: `fanin jobs` lists them")
    if len(found) > 1:
        raise UnknownJob(f"{shown(name)} begins several job ids ({', '.join(found[:3])}, …): give more of it")
    return found[0]


def _refuse_flow(name: str, buckets: int) -> Txn[None]:
    try:
        yield from find_flow(name, buckets)
    except UnknownJob:
        return
    raise UnknownJob(
        f"{shown(name)} is a flow, and a job is meant: `fanin show {shlex.quote(name)}` names the jobs of its steps; "
        "the flow itself is cancelled and redriven by `fanin flows`"
    )
