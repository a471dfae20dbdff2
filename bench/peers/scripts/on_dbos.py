"""DBOS: a durable workflow that enqueues one child workflow per part and waits for all, on PostgreSQL."""

from __future__ import annotations

import os
import sys

import harness
from dbos import DBOS, DBOSClient

SLOTS = 8
POLL_SECONDS = 0.05
PARENTS, PARTS, VERSION = "parents", "parts", "1"


def address() -> str:
    url: str = harness.url()
    return url.replace("postgresql://", "postgresql+psycopg://", 1)


def serve(once: bool) -> None:
    """One worker process; ``once``: only make the tables and the queues."""
    DBOS(config={"name": "peer", "system_database_url": address(), "application_version": VERSION, "log_level": "ERROR",
                 "executor_id": str(os.getpid()), "run_admin_server": False,
                 "notification_listener_polling_interval_sec": 0.01})  # fmt: skip

    @DBOS.workflow(name="part")
    def part(n: int) -> int:
        return n

    @DBOS.workflow(name="parent")
    def parent(parts: int) -> None:
        children = [DBOS.enqueue_workflow(PARTS, part, n) for n in range(parts)]
        harness.joined([child.get_result(polling_interval_sec=POLL_SECONDS) for child in children])

    DBOS.launch()
    DBOS.register_queue(PARTS, worker_concurrency=SLOTS, polling_interval_sec=POLL_SECONDS)
    DBOS.register_queue(PARENTS, polling_interval_sec=POLL_SECONDS)
    if once:
        DBOS.destroy()
    else:
        import threading

        threading.Event().wait()


def submit(parts: int) -> None:
    client = DBOSClient(system_database_url=address())
    client.enqueue({"queue_name": PARENTS, "workflow_name": "parent", "app_version": VERSION}, parts)
    client.destroy()


def commands(workers: int) -> list[list[str]]:
    return [[sys.executable, "-c", "import on_dbos; on_dbos.serve(False)"] for _ in range(workers)]


if __name__ == "__main__":
    harness.measure(submit, commands, lambda: serve(True))
