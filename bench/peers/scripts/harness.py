"""What all peers share, with the standard library alone: start the workers, warm them, time one fan-out, judge it.

A script is run by the interpreter of the peer's own environment. Its workers import the same script as a module and
call `joined` with all results in order from the callback. The last line that the script prints is the outcome.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

SINK = "FANIN_PEER_SINK"
URL = "FANIN_PEER_URL"
WARM_PARTS = 20
WARM_TIMES = 2
START_SECONDS = 60.0
SETTLE_SECONDS = 0.5
STOP_SECONDS = 10.0
LOOK_SECONDS = 0.003


def url() -> str:
    """Where the peer keeps its things."""
    return os.environ.get(URL, "")


def joined(results: Iterable[int]) -> None:
    """Called by the peer's callback: notes what it was given, and when."""
    values = list(results)
    ordered = values == list(range(len(values)))
    seen = {"at": time.time(), "count": len(values), "distinct": len(set(values)), "ordered": ordered}
    sink = os.open(os.environ[SINK], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(sink, (json.dumps(seen) + "\n").encode())
    os.close(sink)


def measure(
    submit: Callable[[int], None],
    commands: Callable[[int], Sequence[Sequence[str]]] | None = None,
    prepare: Callable[[], None] = lambda: None,
) -> None:
    """Run the script. submit: creates a fan-out of so many parts. commands: how W workers are started (None: submit
    does everything itself). prepare: makes tables."""
    asked = _asked()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the workers are stopped
    os.chdir(Path(__file__).parent)
    with tempfile.TemporaryDirectory(prefix="fanin-peer-") as folder:
        os.environ[SINK] = str(Path(folder, "joins"))
        os.environ["FANIN_PEER_WORKERS"] = str(asked.workers)
        prepare()
        with Path(folder, "log").open("w+") as log:
            running = [_start(command, log) for command in (commands(asked.workers) if commands else [])]
            try:
                print(json.dumps(_timed(submit, asked, running)))
            except TimeoutError as problem:
                log.seek(0)
                print(f"{problem}; its log ends with:\n{log.read()[-2000:]}", file=sys.stderr)
                raise SystemExit(1) from None
            finally:
                _stop(running)


def itself(module: str) -> Any:
    """The running script as its workers know it: tasks are named after the module, which here is ``__main__``."""
    return importlib.import_module(Path(module).stem)


def _timed(submit: Callable[[int], None], asked: argparse.Namespace, running: list[subprocess.Popen[str]]) -> Any:
    for done in range(WARM_TIMES):
        submit(WARM_PARTS)
        _wait(done + 1, START_SECONDS, running)
    started = time.time()
    submit(asked.parts)
    submitted = time.time()
    (outcome, *_) = _wait(WARM_TIMES + 1, asked.timeout, running)[WARM_TIMES:]
    time.sleep(SETTLE_SECONDS)  # a second callback would come now
    return {
        "total_seconds": outcome["at"] - started,
        "submit_seconds": submitted - started,
        "joins": len(_joins()) - WARM_TIMES,
        "count": outcome["count"],
        "distinct": outcome["distinct"],
        "ordered": outcome["ordered"],
    }


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--parts", type=int, required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--timeout", type=float, default=300.0)
    return parser.parse_args()


def _joins() -> list[Any]:
    try:
        return [json.loads(line) for line in Path(os.environ[SINK]).read_text().splitlines()]
    except FileNotFoundError:
        return []


def _wait(joins: int, seconds: float, running: list[subprocess.Popen[str]]) -> list[Any]:
    deadline = time.monotonic() + seconds
    while len(found := _joins()) < joins:
        if time.monotonic() > deadline:
            raise TimeoutError(f"no callback after {seconds:g} s")
        if any(process.poll() is not None for process in running):
            raise TimeoutError("a worker has ended by itself")
        time.sleep(LOOK_SECONDS)
    return found


def _start(command: Sequence[str], log: Any) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "PYTHONWARNINGS": "ignore"}
    return subprocess.Popen(command, env=environment, stdout=log, stderr=log, text=True, start_new_session=True)


def _stop(running: list[subprocess.Popen[str]]) -> None:
    for process in running:
        process.send_signal(signal.SIGTERM)
    for process in running:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # the group that it was started as, with its children
        process.wait()
