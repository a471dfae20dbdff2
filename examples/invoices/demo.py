"""Send invoices while workers are killed at random, the mail server loses answers, and so does the receiver.

    python examples/invoices/demo.py [DIRECTORY] [--invoices N] [--workers N] [--kills N] [--seed N] [--url URL]

Exits with 1 if an invoice was not mailed exactly once, or the end not booked exactly once.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import fanin  # noqa: E402
from examples.invoices.mailserver import MailServer  # noqa: E402

LONGEST_S = 300
SECRET = "whsec_aW52b2ljZXMtYXJlLWJvb2tlZC1vbmNlLW9ubHk="
CUSTOMERS = ("Ada", "Grace", "Kay", "Edsger", "Barbara", "Tony")


def main() -> int:
    options = parse()
    directory = options.directory.resolve()
    shutil.rmtree(directory, ignore_errors=True)
    (directory / "mailbox").mkdir(parents=True)
    chance = random.Random(options.seed)
    mails = MailServer(directory / "mailbox")
    threading.Thread(target=mails.serve_forever, daemon=True).start()
    port = free_port()
    os.environ |= {
        "FANIN_URL": options.url or f"sqlite:///{directory}/fanin.db",
        "FANIN_OUTPUTS": str(directory / "outputs"),
        "FANIN_WEBHOOK_SECRET": SECRET,
        "INVOICES_MAILBOX": str(directory / "mailbox"),
        "INVOICES_SMTP_PORT": str(mails.port),
        "INVOICES_BOOKS": str(directory / "books.db"),
        "INVOICES_SECRET": SECRET,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    }
    from examples.invoices import tasks  # it reads these settings, as it does in the workers

    orders = [
        tasks.Order(number=1000 + n, customer=chance.choice(CUSTOMERS), cents=chance.randrange(500, 90_000))
        for n in range(options.invoices)
    ]
    job = tasks.app.map(tasks.invoice, orders, then=tasks.total, key="invoices")
    crew = Crew(directory, options.workers, port)
    try:
        kills = crew.kill_at_random(options.kills, chance, lambda: done(job, directory))
        crew.wait_until(lambda: done(job, directory))
    finally:
        crew.stop()
    problems = list(broken_promises(job, orders, directory))
    report(job, directory, kills, problems)
    return 1 if problems else 0


def done(job: fanin.Job, directory: Path) -> bool:
    """Whether the job, every mail and every announcement have come to their end."""
    successor = job.successor
    if successor is None or successor.status != "completed":
        return False
    states = Counter(effect.status for effect in job.effects())
    return states.keys() <= {"done", "unknown", "failed"} and booked(directory).keys() == {job.id, successor.id}


def booked(directory: Path) -> Counter[str]:
    with sqlite3.connect(directory / "books.db") as books:
        if not books.execute("SELECT 1 FROM sqlite_master WHERE name = 'booked'").fetchall():
            return Counter()
        return Counter(job for (job,) in books.execute("SELECT job FROM booked"))


def broken_promises(job: fanin.Job, orders: list[dict[str, object]], directory: Path) -> Iterator[str]:
    """What is not as it was promised."""
    successor = job.successor
    assert successor is not None
    if successor.result() != sum(int(str(order["cents"])) for order in orders):
        yield "the total is not the sum of all orders"
    if len(list(job.outputs("invoice.pdf"))) != len(orders):
        yield "not every invoice has its PDF"
    mails = [file.name.removesuffix(".eml") for file in (directory / "mailbox").glob("*.eml")]
    wanted = [effect.key.replace("/", ".") for effect in job.effects()]
    if sorted(mails) != sorted(wanted) or len(wanted) != len(orders):
        yield f"{len(mails)} mails for {len(orders)} invoices, not one each"
    if booked(directory) != {job.id: 1, successor.id: 1}:
        yield f"the ends were booked {booked(directory)}"
    if any(effect.status != "done" for effect in job.effects()):
        yield "an effect is not done"


def report(job: fanin.Job, directory: Path, kills: int, problems: list[str]) -> None:
    account, calls = job.account(), sum(effect.calls for effect in job.effects())
    print(f"{account['parts']} invoices, {account['attempts']} attempts, {kills} workers killed")
    print(f"{len(list((directory / 'mailbox').glob('*.eml')))} mails delivered, {calls} calls of the mail server begun")
    print(f"{sum(booked(directory).values())} ends booked of {len(booked(directory))} jobs")
    for problem in problems:
        print(f"Not as promised: {problem}")


class Crew:
    """The workers, which also relay events, and the receiver. All write their logs into the directory."""

    def __init__(self, directory: Path, workers: int, port: int) -> None:
        self._directory = directory
        self._port = port
        self._receiver = self._start("receiver", "uvicorn", "examples.invoices.receiver:api", "--port", str(port))
        self._workers = [self._worker(number) for number in range(workers)]

    def _start(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        with (self._directory / f"{name}.log").open("ab") as log:
            return subprocess.Popen([sys.executable, "-m", *words], stdout=log, stderr=log)

    def _worker(self, number: int) -> subprocess.Popen[bytes]:
        hook = f"http://127.0.0.1:{self._port}/events?fanin_private=yes"
        return self._start(f"worker-{number}", "fanin", "work", "examples.invoices.tasks:app", f"--relay={hook}")

    def kill_at_random(self, kills: int, chance: random.Random, over: object) -> int:
        """Kill a worker now and then, and start another in its place. How many were killed."""
        assert callable(over)
        for killed in range(kills):
            if over():
                return killed
            time.sleep(chance.uniform(1.5, 3.0))
            number = chance.randrange(len(self._workers))
            self._workers[number].send_signal(signal.SIGKILL)
            self._workers[number].wait()
            self._workers[number] = self._worker(number)
        return kills

    def wait_until(self, over: object) -> None:
        assert callable(over)
        deadline = time.monotonic() + LONGEST_S
        while not over():
            if time.monotonic() > deadline:
                raise SystemExit(f"not done after {LONGEST_S} s; look at the logs in {self._directory}")
            time.sleep(0.2)

    def stop(self) -> None:
        for process in (*self._workers, self._receiver):
            process.terminate()
        for process in (*self._workers, self._receiver):
            process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("directory", nargs="?", type=Path, default=Path("invoices-demo"))
    parser.add_argument("--invoices", type=int, default=60)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--url", default=None, help="default: an SQLite file in the directory")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
