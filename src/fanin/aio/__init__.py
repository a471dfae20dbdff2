"""`App` and `Job` for programs on an event loop: the same names and parameters, awaited."""

from fanin.aio.app import AsyncApp
from fanin.aio.flow import AsyncFlow, AsyncFlowRun
from fanin.aio.job import AsyncJob, AsyncOpenJob
from fanin.aio.schedule import AsyncSchedule

__all__ = ["AsyncApp", "AsyncFlow", "AsyncFlowRun", "AsyncJob", "AsyncOpenJob", "AsyncSchedule"]
