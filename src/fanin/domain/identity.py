"""Ids and keys. Whatever happens again must meet itself: no key here contains an attempt.

A job with a request key has an id that follows from the key, a successor one that follows from its parent, step and
run, so the primary key alone holds the promise "one key, one job".
"""

from __future__ import annotations

import hashlib
import uuid

import uuid_utils

_TAIL_BYTES = 2
"""The end of an id says its bucket. A successor has its parent's, so that one transaction of one shard holds both."""
_RANK_BYTES = 4
"""The beginning of an id says its place in the order of locks: a nested job stands before the job that waits for it."""
LISTENER = "on/"
"""How the step of a listener's job begins; the rest is the name of its task."""
SCHEDULED = "at/"
"""How the step of a scheduled job begins; the rest is the name of its schedule."""
NIL = "00000000-0000-0000-0000-000000000000"
"""Before every id: where pages of them begin."""
JOB_SPACE = uuid.UUID("6f1d3a52-6b0e-5c55-9d3c-0b8a4c9f7e21")


def new_job_id() -> str:
    """A time-ordered random id (UUIDv7), made by the client before the first try."""
    return str(uuid_utils.uuid7())


def new_claim_id() -> str:
    """A random id, one per claim call."""
    return str(uuid.uuid4())


def keyed_job_id(key: str) -> str:
    """The id of the job that was asked for under ``key``."""
    return str(uuid.uuid5(JOB_SPACE, "key/" + key))


def successor_id(job_id: str, step: str, run: int) -> str:
    """The id of the job that follows run ``run`` of ``job_id`` at ``step``: in its bucket, and of its rank."""
    return _relative(f"successor/{job_id}/{step}/{run}", job_id, 0)


def nested_id(job_id: str, idx: int, of: str = "") -> str:
    """The id of the job that part ``idx`` of ``job_id`` waits for: the same in every attempt and run of the part.

    ``of``: the part was told to begin anew, and of what its items are now.

    It sorts before ``job_id``. A transaction that takes jobs in the order of their ids therefore comes to a nested job
    before the one that waits for it, as the end of the nested job does. (One id in four billion has no smaller rank and
    gets the greatest: then a deadlock is possible, which the database ends and the store tries again.)
    """
    return _relative(f"nested/{job_id}/{idx}" + (f"/{of}" if of else ""), job_id, -1)


def refused_id(job_id: str, idx: int, run: int) -> str:
    """The id of the job that says what part ``idx`` was refused in this run of ``job_id``. Not that of the nested job,
    which a later run may be allowed."""
    return _relative(f"refused/{job_id}/{idx}/{run}", job_id, -1)


def keyed_flow_id(key: str) -> str:
    """The id of the flow that was asked for under ``key``."""
    return str(uuid.uuid5(JOB_SPACE, "flow/" + key))


def child_flow_id(parent_id: str, idx: int, number: int) -> str:
    """The id of flow ``number``, from 0, that the handler of part ``idx`` of ``parent_id`` declares: see `child_id`."""
    return str(uuid.uuid5(JOB_SPACE, f"child-flow/{parent_id}/{idx}/{number}"))


def step_id(flow_id: str, n: int) -> str:
    """The id of the job that runs step ``n`` of a flow, in every run of the flow."""
    return _relative(f"step/{flow_id}/{n}", flow_id, 0)


def undo_id(flow_id: str, n: int) -> str:
    """The id of the job that undoes step ``n`` of a flow."""
    return _relative(f"undo/{flow_id}/{n}", flow_id, 0)


def flow_finished_key(flow_id: str, run: int) -> str:
    """The one event key of the end of a run of a flow, whatever its state."""
    return f"flow/{flow_id}/finished/{run}"


def flow_attention_key(flow_id: str, seq: int) -> str:
    """The key of the event that asks for a person: there may be several in a run."""
    return f"flow/{flow_id}/attention/{seq}"


def _relative(name: str, job_id: str, rank: int) -> str:
    own, other = uuid.uuid5(JOB_SPACE, name).bytes, uuid.UUID(job_id).bytes
    first = (int.from_bytes(other[:_RANK_BYTES]) + rank) % 256**_RANK_BYTES
    return str(uuid.UUID(bytes=first.to_bytes(_RANK_BYTES) + own[_RANK_BYTES:-_TAIL_BYTES] + other[-_TAIL_BYTES:]))


def rank(job_id: str) -> str:
    """Of a nested job, that before the rank of the job that waits for it: see `nested_id`."""
    return job_id[: 2 * _RANK_BYTES]


def child_id(parent_id: str, idx: int, number: int) -> str:
    """The id of job ``number``, from 0, that the handler of part ``idx`` of ``parent_id`` makes: the same each time
    the part is run, so that an attempt that follows another finds its jobs instead of making them again."""
    return str(uuid.uuid5(JOB_SPACE, f"child/{parent_id}/{idx}/{number}"))


def schedule_id(name: str) -> str:
    """Says the bucket of a schedule, which holds its jobs too."""
    return str(uuid.uuid5(JOB_SPACE, f"schedule/{name}"))


def firing_id(name: str, slot: float, by_hand: bool = False) -> str:
    """The id of the job of one slot of a schedule, whoever fires it; ``by_hand``: of one that an operator asked for."""
    own = uuid.uuid5(JOB_SPACE, f"{'hand' if by_hand else 'slot'}/{name}/{float(slot)!r}")
    return str(uuid.UUID(bytes=own.bytes[:-_TAIL_BYTES] + uuid.UUID(schedule_id(name)).bytes[-_TAIL_BYTES:]))


def share_of(job_id: str) -> float:
    """A number from 0 to 1 that follows from an id, evenly spread."""
    return uuid.UUID(job_id).int / 2**128


def finished_key(job_id: str, run: int) -> str:
    """The one event key of the end of a run, whatever its outcome: two different endings would collide."""
    return f"job/{job_id}/finished/{run}"


def failed_key(job_id: str, run: int, idx: int) -> str:
    """The one event key of the failure of a part in a run."""
    return f"job/{job_id}/failed/{run}/{idx}"


def progress_key(job_id: str, run: int, seq: int) -> str:
    """The key of one of the events that tell how far a run is: ``seq`` is its place among those of the job."""
    return f"job/{job_id}/progress/{run}/{seq}"


def part_key(job_id: str, idx: int) -> str:
    """The idempotency key of a part: the same on every attempt and in every run."""
    return f"{job_id}/{idx}"


class PartKey(str):
    """The key of a part, which makes keys of its calls when it is called itself: ``key("charge")``."""

    __slots__ = ()

    def __call__(self, name: str) -> str:
        return f"{self}/{name}"


def effect_key(job_id: str, idx: int, name: str) -> str:
    """The idempotency key of one effect of a part: the same on every attempt and in every run."""
    return PartKey(part_key(job_id, idx))(name)


def item_key(text: str) -> str:
    """What makes two parts of a growing job the same: the first half of a SHA-256 over the part's payload, or over the
    payload that its key would be."""
    return str(uuid.UUID(bytes=hashlib.sha256(text.encode()).digest()[:16]))


def bucket_of(job_id: str, buckets: int) -> int:
    """The bucket that holds all rows of a job, by the tail of its id, which is random or a hash."""
    return 0 if buckets == 1 else int.from_bytes(uuid.UUID(job_id).bytes[-_TAIL_BYTES:]) % buckets


def stripe_of(idx: int, stripes: int, run_parts: int) -> int:
    """The counter slice of a part. Runs of neighbours share one, so that a claimed batch touches few rows."""
    return (idx // run_parts) % stripes


def tree_weight(job_id: str, parts: int, unit: int) -> int:
    """For how many units of ``unit`` parts a job of so many parts counts, itself included. On average over many ids it
    is exact; for one job it is rounded up or down by its id, so it is the same whoever makes the job."""
    own = int.from_bytes(hashlib.sha256(job_id.encode()).digest()[:8])
    return (own % unit + parts + 1) // unit


def request_hash(*pieces: bytes) -> hashlib._Hash:
    """A running SHA-256 over the content of a request, each piece preceded by its length."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(len(piece).to_bytes(8, "big"))
        digest.update(piece)
    return digest
