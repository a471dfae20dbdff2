"""What leaves through the outbox, and how it looks to the world: CloudEvents 1.0 around a versioned payload."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from fanin.domain import limits, states
from fanin.domain.durations import Duration, seconds
from fanin.domain.errors import BadOption, shown

TYPE_PREFIX = "fanin."
CONTENT_TYPE = "application/json"
ENVELOPE_TYPE = "application/cloudevents+json"
DEFAULT_SOURCE = "/fanin"


class EndedBy(msgspec.Struct, frozen=True):
    """The attempt whose report, or whose lost lease, ended a run: the last of its batch. ``worker`` reported it."""

    part: int
    attempt: int
    worker: str | None = None


class JobFinished(msgspec.Struct, frozen=True):
    """The payload of ``job.finished``: one run of a job has ended, whatever its outcome.

    ``reason`` is for people. ``succeeded``, ``failed`` and ``abandoned`` count the parts. ``key`` is the caller's name
    for the job, if it has one. ``ended_by`` is None if no part ended the run: a deadline did, or a person.
    """

    version: int
    job_id: str
    run: int
    status: str
    outcome: str
    reason: str | None
    succeeded: int
    failed: int
    abandoned: int
    key: str | None
    task: str
    ended_by: EndedBy | None = None


class PartFailed(msgspec.Struct, frozen=True):
    """The payload of ``part.failed``: a part of a job that tells its failures has failed for good, in this run.

    ``attempt`` failed, or was lost, with an error of the kind ``error`` (the name of its class) and ``message``.
    """

    version: int
    job_id: str
    run: int
    part: int
    attempt: int
    error: str
    message: str
    key: str | None
    task: str


class JobProgress(msgspec.Struct, frozen=True):
    """The payload of ``job.progress``: how far a job is that tells its progress.

    ``succeeded`` and ``failed`` count the parts that have ended, ``remaining`` those that are pending or running. The
    counts were read together, while the job went on.
    """

    version: int
    job_id: str
    run: int
    status: str
    succeeded: int
    failed: int
    remaining: int
    key: str | None
    task: str


class FlowFinished(msgspec.Struct, frozen=True):
    """The payload of ``flow.finished``: a run of a flow has ended; and of ``flow.needs_attention``: a person has to
    undo a step, or to look at an undo that failed.

    ``cause`` says why it did not complete (``failed``, ``cancelled`` or ``gave_up``), ``reason`` more, for people.
    ``steps`` counts the steps by their states. ``notable`` names the first of those that failed, that a person has to
    undo or has given up, with their states.
    """

    version: int
    flow_id: str
    name: str
    key: str | None
    run: int
    status: str
    cause: str | None
    reason: str | None
    steps: dict[str, int]
    notable: dict[str, str]


Payload = JobFinished | PartFailed | JobProgress | FlowFinished

PAYLOADS: dict[str, type[Payload]] = {
    "job.finished": JobFinished,
    "part.failed": PartFailed,
    "job.progress": JobProgress,
    "flow.finished": FlowFinished,
    "flow.needs_attention": FlowFinished,
}
"""Every type of event with its payload. ``docs/events.md`` shows the schema of each."""
LISTENED = ("job.finished", "flow.finished", "flow.needs_attention")
"""The types that tasks can listen to: those that are written with the end of a job or a flow."""
PAYLOAD_VERSION = 1
SAMPLE = (
    '{"version":1,"job_id":"","run":1,"status":"completed","outcome":"all_ok","reason":null,"succeeded":1,"failed":0,'
    '"abandoned":0,"key":null,"task":""}'
)
"""A payload, to see whether a listener could read one."""
FLOW_SAMPLE = (
    '{"version":1,"flow_id":"","name":"f","key":null,"run":1,"status":"completed","cause":null,"reason":null,'
    '"steps":{"done":1},"notable":{}}'
)
"""The same of a flow."""


class Events:
    """What a job tells beside its end, which always has an event.

    failures: a ``part.failed`` for each part that fails for good. progress: a ``job.progress`` at most so often, in
    seconds or as a text such as ``"30s"``, if parts have ended since the last one; a worker writes it. By default
    neither.

    Raises `BadOption`.
    """

    __slots__ = ("failures", "progress")

    def __init__(self, failures: bool = False, progress: Duration | None = None) -> None:
        if type(failures) is not bool:
            raise BadOption(f"failures={shown(failures)}: give True or False")
        every = None if progress is None else seconds(progress, "progress")
        if every is not None and every < limits.PROGRESS_SECONDS_MIN:
            raise BadOption(f"progress={shown(progress)}: give at least {limits.PROGRESS_SECONDS_MIN:g} seconds")
        self.failures = failures
        self.progress = every


class Event(msgspec.Struct, frozen=True, gc=False):
    """A row of the outbox as a relay holds it. ``at`` is in seconds since the epoch, ``payload`` is JSON.

    ``tries`` counts the claims that ended in a refusal or with the relay's end, the present one included.
    """

    bucket: int
    key: str
    job_id: str
    seq: int
    type: str
    payload: str
    at: float
    tries: int = 1

    @property
    def time(self) -> str:
        """When it happened, as RFC 3339 in UTC."""
        return datetime.fromtimestamp(self.at, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")

    def decoded(self) -> Payload:
        """The payload. Fields that a newer version has added are left out."""
        return msgspec.json.decode(self.payload, type=PAYLOADS[self.type])


def schema(kind: str) -> dict[str, Any]:
    """The JSON schema of a type's payload. Receivers should let other fields pass: a later version may add some."""
    parts = msgspec.json.schema(PAYLOADS[kind])["$defs"]
    found = parts.pop(PAYLOADS[kind].__name__)
    properties = dict(found["properties"])
    properties["version"] = {"const": PAYLOAD_VERSION}
    if kind == "job.finished":
        properties["status"] = {"enum": list(states.JOB_ENDED)}
        properties["outcome"] = {"enum": list(states.OUTCOMES)}
    if kind == "flow.finished":
        ended = [status for status in states.FLOW_STATES if status not in (*states.FLOW_LIVE, "needs_attention")]
        properties["status"] = {"enum": ended}
    if kind == "flow.needs_attention":
        properties["status"] = {"const": "needs_attention"}
    if kind == "job.progress":
        properties["status"] = {"enum": [status for status in states.JOB_STATES if status not in states.JOB_ENDED]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"{TYPE_PREFIX}{kind}.v{PAYLOAD_VERSION}",
        "type": "object",
        "properties": properties,
        "required": found["required"],
        "$defs": {name: {key: part[key] for key in ("type", "properties", "required")} for name, part in parts.items()},
    }


class _Version(msgspec.Struct):
    version: int = 1


def attributes(event: Event, source: str = DEFAULT_SOURCE) -> dict[str, str]:
    """The context attributes of CloudEvents 1.0, all texts. ``id`` is the event key: the same on every delivery."""
    version = msgspec.json.decode(event.payload, type=_Version).version
    return {
        "specversion": "1.0",
        "id": event.key,
        "source": source,
        "type": f"{TYPE_PREFIX}{event.type}.v{version}",
        "subject": event.job_id,
        "time": event.time,
        "datacontenttype": CONTENT_TYPE,
        "partitionkey": event.job_id,
        "sequence": f"{event.seq:010d}",
    }


def structured(event: Event, source: str = DEFAULT_SOURCE) -> bytes:
    """The whole event as one JSON document: the same bytes on every delivery. Its type is `ENVELOPE_TYPE`."""
    return msgspec.json.encode({**attributes(event, source), "data": msgspec.Raw(event.payload.encode())})


def binary(event: Event, source: str = DEFAULT_SOURCE, prefix: str = "ce-") -> tuple[dict[str, str], bytes]:
    """Headers and body: the attributes under ``prefix``, the payload alone as the body."""
    found = attributes(event, source)
    kind = found.pop("datacontenttype")
    return {"content-type": kind, **{prefix + name: value for name, value in found.items()}}, event.payload.encode()
