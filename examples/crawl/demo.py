"""Crawl a site of a few thousand pages with two workers, one of which is killed on the way: no page comes in twice.

    python examples/crawl/demo.py crawl-demo [--pages=3000] [--url=postgresql://…]

Exit status 0 if each page is one part with one result; 1 if not.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from examples.crawl.site import Site  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("crawl-demo"))
    parser.add_argument("--pages", type=int, default=3_000)
    parser.add_argument("--url")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    os.environ["FANIN_URL"] = options.url or f"sqlite:///{(options.folder / 'crawl.db').resolve()}"
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with Site(options.pages).running() as site:
        return crawl(site, options.folder)


def crawl(site: Site, folder: Path) -> int:
    from examples.crawl.tasks import app, rank, visit

    job = app.map(visit, [f"{site.url}/page/0"], grows=2 * site.pages, then=rank)
    began = time.monotonic()
    workers = [start_worker(folder, name) for name in ("one", "two")]
    try:
        while job.progress().succeeded < site.pages // 4:
            check(workers)
            time.sleep(0.02)
        workers[0].kill()
        print(f"{job.progress().succeeded} pages in, one worker is killed")
        workers[0].wait()
        workers[0] = start_worker(folder, "three")
        while not job.progress().ended or not (job.successor and job.successor.progress().ended):
            check(workers)
            time.sleep(0.05)
    finally:
        for worker in workers:
            worker.terminate()
            worker.wait()
    seconds = time.monotonic() - began
    account, total = job.account(), job.progress().total
    again = sum(count - 1 for count in site.asked.values())
    results = sum(1 for _ in job.results())
    print(f"{site.pages} pages, {total} parts, {results} results, in {seconds:.1f} s")
    print(f"{again} pages were asked for again, by attempts after the kill; {account['leases_lost']} leases were lost")
    for url, count in job.successor.result()[:3] if job.successor else []:
        print(f"  {count} links to {url}")
    right = total == results == site.pages == len(site.asked) and again <= account["attempts"] - total
    print("each page once" if right else "NOT each page once")
    return 0 if right else 1


def start_worker(folder: Path, name: str) -> subprocess.Popen[bytes]:
    log = open(folder / f"worker-{name}.log", "wb")  # noqa: SIM115 - the worker's
    command = [sys.executable, "-m", "fanin", "work", "examples.crawl.tasks:app", "--concurrency", "8"]
    with log:
        return subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT)


def check(workers: list[subprocess.Popen[bytes]]) -> None:
    for worker in workers:
        if worker.poll() is not None:
            raise SystemExit(f"a worker has ended with {worker.returncode}; see its log")


if __name__ == "__main__":
    sys.exit(main())
