"""Print Python's standard library as one book, while workers are killed and paused.

    python examples/book/demo.py [DIRECTORY] [--parts N] [--workers N] [--no-faults] [--url URL] [--compare]

Exits with 1 if the book or the account is not as promised.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import fanin  # noqa: E402
from examples.book.account import broken_promises, table, take  # noqa: E402
from examples.book.workers import Draft, Workers  # noqa: E402

LONGEST_S = 600
OVERTAKEN_S = 8
FEWEST_PARTS = 30  # with fewer the workers are done before something can happen to them
console = Console(highlight=False)


def main() -> int:
    options = parse()
    directory = options.directory.resolve()
    prepare(directory)
    os.environ["BOOK_DIR"] = str(directory)
    os.environ["FANIN_URL"] = options.url or f"sqlite:///{directory}/fanin.db"
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    from examples.book import tasks  # it reads these settings, as it does in the workers

    started = time.monotonic()
    job = tasks.app.map(tasks.print_module, tasks.library(options.parts), then=tasks.bind_book)
    console.print(f"Job [bold]{job.id}[/] in {os.environ['FANIN_URL']}")
    with Workers(options.workers, directory) as workers:
        follow(job, workers, options.faults)
        seconds = time.monotonic() - started
    account = take(job, seconds)
    (directory / "account.json").write_text(json.dumps(account, indent=2) + "\n")
    console.print(table(account, options.workers, with_one_worker(directory, options) if options.compare else None))
    problems = list(broken_promises(job, account, options.faults))
    for problem in problems:
        console.print(f"[bold red]Not as promised: {problem}")
    console.print(f"[bold]{directory / 'book.pdf'}")
    return 1 if problems else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Print Python's standard library as one book.")
    parser.add_argument("directory", nargs="?", type=Path, default=Path("book-demo"))
    parser.add_argument("--parts", type=int, help="print only so many modules (default: all)")
    parser.add_argument("--workers", type=int, default=3, help="worker processes (default: 3)")
    parser.add_argument("--no-faults", dest="faults", action="store_false", help="leave the workers alone")
    parser.add_argument("--url", default=os.environ.get("FANIN_URL"), help="database (default: a new file)")
    parser.add_argument("--compare", action="store_true", help="then measure one worker that nobody disturbs")
    options = parser.parse_args()
    if options.parts is not None and options.parts < (FEWEST_PARTS if options.faults else 1):
        parser.error(f"--parts {options.parts}: give {FEWEST_PARTS} or more, or at least 1 with --no-faults")
    if options.workers < (3 if options.faults else 1):
        parser.error("one worker is killed and one is paused, so give --workers 3 or more, or --no-faults")
    return options


def prepare(directory: Path) -> None:
    """What an earlier demo left in `directory` is removed."""
    directory.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(directory / "pages", ignore_errors=True)
    for pattern in ("fanin.db*", "book.pdf", ".book.pdf.*", "account.json", "worker-*.log"):
        for file in directory.glob(pattern):
            file.unlink()


def follow(job: fanin.Job, workers: Workers, faults: bool) -> None:
    """Show the progress until the book is bound. The accidents happen meanwhile, in a thread."""
    accidents = threading.Thread(target=disturb, args=(job, workers), daemon=True)
    if faults:
        accidents.start()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    deadline = time.monotonic() + LONGEST_S
    with Progress(*columns, console=console) as bar:
        printing = bar.add_task("printing")
        while not bound(job) or accidents.is_alive():
            now = job.progress()
            bar.update(printing, total=now.total, completed=now.total - now.remaining)
            if now.ended and now.status != "completed":
                raise SystemExit(f"the job has {now.status}: {job.failures()[:3]}")
            if now.ended:
                bar.update(printing, description="binding")
            workers.complain()
            if time.monotonic() > deadline:
                raise SystemExit(f"not done after {LONGEST_S} s: {now}")
            time.sleep(0.1)
        bar.update(printing, description="printed", completed=now.total)


def bound(job: fanin.Job) -> bool:
    successor = job.successor
    return successor is not None and successor.progress().ended


def disturb(job: fanin.Job, workers: Workers) -> None:
    """After a third of the parts kill one worker in the middle of a part, and pause another.

    The paused one is woken when somebody else has taken over its part. Now it is a zombie: it goes on where it was,
    and commits too late.
    """
    while job.progress().fraction < 1 / 3:
        time.sleep(0.02)
    victim, lost = workers.freeze_one()
    victim.kill()
    console.print(f"[red]{victim.name} is killed (SIGKILL) in the middle of part {lost.idx}")
    while True:
        sleeper, held = workers.freeze_one()
        console.print(f"[yellow]{sleeper.name} is paused (SIGSTOP) in the middle of part {held.idx}")
        paused = time.monotonic()
        while not (overtaken := held.overtaken(sleeper.directory)) and time.monotonic() - paused < OVERTAKEN_S:
            time.sleep(0.05)
        sleeper.thaw()
        console.print(f"[green]{sleeper.name} goes on (SIGCONT) after {time.monotonic() - paused:.1f} s")
        if overtaken:
            break
        # Stopped while another of its threads held the file's write lock, it stopped everybody. Try again.
    while not (row := refusal(job, held)):
        time.sleep(0.05)
    console.print(
        f"[green]{sleeper.name} commits part {held.idx} too late: "
        f"attempt {row['attempt']} is refused, attempt {row['holder']} has the part"
    )


def refusal(job: fanin.Job, held: Draft) -> dict[str, Any] | None:
    """The database's record that the commit of this attempt came too late."""
    wanted = ("refused", held.idx, held.attempt)
    return next((row for row in job.history() if (row["what"], row["idx"], row["attempt"]) == wanted), None)


def with_one_worker(directory: Path, options: argparse.Namespace) -> float:
    """The wall time of the same job on a fresh file with one worker that nobody disturbs."""
    console.print("The same again with one worker ...")
    alone = directory / "one-worker"
    command = [sys.executable, __file__, str(alone), "--no-faults", "--workers=1", f"--url=sqlite:///{alone}/fanin.db"]
    if options.parts:
        command.append(f"--parts={options.parts}")
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return float(json.loads((alone / "account.json").read_text())["wall_seconds"])


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted; the workers have given their parts back")
