"""fanin: fan a job out over workers, join it exactly once.

``App`` (or ``AsyncApp``) registers tasks and submits jobs; workers run the parts; the last part's commit ends the job,
with its event and its successor in the same transaction.
"""

from typing import TYPE_CHECKING, Any

from fanin.app import App
from fanin.domain.effects import Effect
from fanin.domain.errors import (
    BadOption,
    BadPayload,
    BrokenOutput,
    EffectFailed,
    EffectUnknown,
    FaninError,
    JobFailed,
    KeyConflict,
    LeaseLost,
    LimitExceeded,
    NotAllowedNow,
    Permanent,
    Refused,
    RetryLater,
    SchemaMismatch,
    StaleToken,
    StoreBusy,
    StoreUnreachable,
    Unavailable,
    UnknownJob,
    UnknownPart,
    UnknownSchedule,
    UnknownTask,
    UnsafeStore,
    WaitTimeout,
)
from fanin.domain.events import Events, FlowFinished, JobFinished, JobProgress, PartFailed
from fanin.domain.model import Failure, Firing, JobRow, Progress, ScheduleRow
from fanin.domain.policy import Backoff
from fanin.domain.purged import Purged
from fanin.domain.repairs import Repair, Repaired
from fanin.domain.signals import Signals
from fanin.domain.timeline import Explanation, Moment
from fanin.flow import Flow, FlowRun, Step, manual
from fanin.job import Job
from fanin.opened import OpenJob
from fanin.runtime.fanout import FanOut
from fanin.runtime.joined import Joined
from fanin.runtime.outputs import Output
from fanin.runtime.part import Part, current
from fanin.runtime.successor import Successor
from fanin.runtime.task import Task

if TYPE_CHECKING:
    from fanin.aio import AsyncApp, AsyncFlow, AsyncFlowRun, AsyncJob, AsyncOpenJob, AsyncSchedule
    from fanin.schedule import Schedule

__version__ = "0.1.0"

__all__ = [
    "App",
    "AsyncApp",
    "AsyncFlow",
    "AsyncFlowRun",
    "AsyncJob",
    "AsyncOpenJob",
    "AsyncSchedule",
    "Backoff",
    "BadOption",
    "BadPayload",
    "BrokenOutput",
    "Effect",
    "EffectFailed",
    "EffectUnknown",
    "Events",
    "Explanation",
    "Failure",
    "FanOut",
    "FaninError",
    "Firing",
    "Flow",
    "FlowFinished",
    "FlowRun",
    "Job",
    "JobFailed",
    "JobFinished",
    "JobProgress",
    "JobRow",
    "Joined",
    "KeyConflict",
    "LeaseLost",
    "LimitExceeded",
    "Moment",
    "NotAllowedNow",
    "OpenJob",
    "Output",
    "Part",
    "PartFailed",
    "Permanent",
    "Progress",
    "Purged",
    "Refused",
    "Repair",
    "Repaired",
    "RetryLater",
    "Schedule",
    "ScheduleRow",
    "SchemaMismatch",
    "Signals",
    "StaleToken",
    "Step",
    "StoreBusy",
    "StoreUnreachable",
    "Successor",
    "Task",
    "Unavailable",
    "UnknownJob",
    "UnknownPart",
    "UnknownSchedule",
    "UnknownTask",
    "UnsafeStore",
    "WaitTimeout",
    "current",
    "manual",
]


def __getattr__(name: str) -> Any:
    """The async twins, when they are asked for: asyncio is a third of what the rest of the import costs."""
    if name == "Schedule":
        from fanin.schedule import Schedule

        return Schedule
    if name.startswith("Async") and name in __all__:
        from fanin import aio

        return getattr(aio, name)
    raise AttributeError(f"module 'fanin' has no attribute {name!r}")
