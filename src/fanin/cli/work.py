"""``fanin work``: worker processes for the tasks of an application."""

from __future__ import annotations

import logging
import os
import signal
import threading
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from fanin.cli import exits
from fanin.cli.options import DEFAULT, Common, option
from fanin.domain.errors import BadOption

if TYPE_CHECKING:
    from fanin.cli.relay import Beside
    from fanin.domain.model import Report, Settled
    from fanin.runtime.worker import Worker

USAGE = "fanin work [OPTIONS] MODULE:APP"


def work(
    target: Annotated[str, Parameter(name="module:app", help="The module and the fanin.App in it, as in tasks:app.")],
    /,
    *,
    processes: Annotated[
        int, option("Worker processes; of several, dead ones are restarted (default: 1).", "--processes", "-p")
    ] = 1,
    concurrency: Annotated[int, option("Handlers at once in each process (default: 4).", "--concurrency", "-c")] = 4,
    queue: Annotated[
        list[str] | None, option("Serve this queue. May be repeated (default: all of the tasks).", "--queue", "-Q")
    ] = None,
    until_idle: Annotated[bool, option("End when nothing is left to do in the queues.")] = False,
    name: Annotated[str | None, option("Name of the worker (default: host, process and a random end).")] = None,
    relay: Annotated[
        list[str] | None, option("Also deliver events to this receiver, as fanin relay --to does. May be repeated.")
    ] = None,
    retain: Annotated[
        str | None,
        option("Purge jobs that ended so long ago, as fanin purge --older-than does, about every ten minutes."),
    ] = None,
    grace: Annotated[str, option("How long running handlers may go on after the first signal (default: 10s).")] = "10s",
    verbose: Annotated[bool, option("Log every part.", "--verbose", "-v")] = False,
    supervised: Annotated[int | None, Parameter(show=False, negative=())] = None,
    common: Common = DEFAULT,
) -> int:
    """Run workers until a signal. The first SIGTERM or Ctrl-C drains: nothing new is begun, what runs may end within
    the grace, the rest is given back and costs no attempt. The second stops at once.

    The module is looked for in the current folder too. Several hosts may run the same line on one database.
    """
    from fanin.cli.load import load_app
    from fanin.cli.relay import beside_workers
    from fanin.domain.durations import seconds
    from fanin.runtime.task import check_name

    _check(processes, concurrency)
    names = [check_name(one, "queue") for one in queue or []]
    if name is not None:
        check_name(name, "name")
    seconds(grace, "--grace")
    age = None if retain is None else seconds(retain, "--retain")
    if common.url is not None:
        os.environ["FANIN_URL"] = common.url  # read by the module when it makes its application
    app = load_app(target)
    if common.url is not None and app.url != common.url:
        raise BadOption(
            f"--url {common.url}: {target} has its own database ({app.url.split('@')[-1]}); make it with fanin.App() "
            "to have it take --url and FANIN_URL"
        )
    if processes > 1:
        from fanin.cli.supervise import Supervisor

        def command(number: int, life: int) -> list[str]:
            words = ["-m", "fanin", "work", target, f"--concurrency={concurrency}", f"--grace={grace}"]
            words += [f"--queue={one}" for one in names]
            words += [f"--name={name}-{number}"] if name else []
            words += [f"--relay={one}" for one in relay or []]
            words += [f"--retain={retain}"] if retain else []
            words += ["--until-idle"] * until_idle + ["--verbose"] * verbose
            words += ["--json"] * common.json + ["--debug"] * common.debug
            return [*words, f"--supervised={life}"]

        return Supervisor(processes, command, until_idle=until_idle, json=common.json).run()

    from fanin.cli.logs import configure
    from fanin.runtime.worker import Worker

    log = configure(json=common.json)
    worker = Worker(
        app, queues=names or None, concurrency=concurrency, name=name, grace=seconds(grace),
        on_part=_log_part(log) if verbose else None, retain=age,
    )  # fmt: skip
    beside = beside_workers(app.store, relay) if relay else None
    try:
        return _run(worker, until_idle, supervised, log, beside)
    finally:
        app.store.close()


def _run(worker: Worker, until_idle: bool, supervised: int | None, log: logging.Logger, beside: Beside | None) -> int:
    """The worker in a thread, so that a signal's handler, which runs in this one, never waits for a lock that the code
    it interrupted holds."""
    signals: list[int] = []
    problems: list[BaseException] = []

    def on_signal(number: int, frame: Any) -> None:
        signals.append(number)
        if len(signals) > 2:
            os._exit(exits.INTERRUPTED)
        worker.stop(now=len(signals) > 1)
        if beside is not None and not thread.is_alive():  # the workers have ended, it delivers the rest
            beside.relay.stop()

    def run() -> None:
        try:
            worker.run(until_idle=until_idle)
        except BaseException as problem:
            problems.append(problem)

    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as a shell sets it for its background jobs
            signal.signal(number, on_signal)
    thread = threading.Thread(target=run, name="fanin-worker", daemon=True)
    thread.start()
    if supervised is not None:
        threading.Thread(target=_outlive, args=(supervised, worker), name="fanin-parent", daemon=True).start()
    while thread.is_alive():
        thread.join(1.0)  # a join without a limit would not let signals in
    if problems:
        raise problems[0]
    log.info("worker %s ended: %d reports settled, %d refused", worker.name, worker.settled, worker.lost)
    if beside is not None:
        if signals or not until_idle:
            beside.relay.stop()
        else:
            beside.relay.finish()
        beside.join()
        log.info("relay %s ended: %s", beside.relay.name, beside.account())
    return exits.INTERRUPTED if len(signals) > 1 else exits.OK


def _outlive(life: int, worker: Worker) -> None:
    """Drain when the supervisor has died: nobody would pass on a signal or restart us."""
    os.read(life, 1)
    worker.stop()


def _log_part(log: logging.Logger) -> Any:
    def said(report: Report, settled: Settled) -> None:
        claim = report.claim
        log.info(
            "job %s part %d attempt %d: %s, %s", claim.job_id[:13], claim.idx, claim.attempt, report.verb,
            settled.verdict.value,
            extra={
                "job": claim.job_id, "part": claim.idx, "attempt": claim.attempt, "verdict": settled.verdict.value,
                "status": settled.status,
            },
        )  # fmt: skip

    return said


def _check(processes: int, concurrency: int) -> None:
    if not 1 <= processes <= 256:
        raise BadOption(f"--processes {processes}: give 1 to 256")
    if not 1 <= concurrency <= 1024:
        raise BadOption(f"--concurrency {concurrency}: give 1 to 1024")
