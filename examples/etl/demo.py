"""CSV to SQLite in chunks, as a saga: if the last step fails, what was loaded is taken back.

    python examples/etl/demo.py [FOLDER] [--rows N] [--chunk N] [--fail publish] [--url URL]

Exit status 0 if the tables are as they must be: loaded once, or, with --fail, as before; 1 if not.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import os
import random
import sys
from itertools import count
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

CUSTOMERS = ("ada", "Grace", " KAY", "edsger ", "Barbara", "tony")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("etl-demo"))
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--chunk", type=int, default=1_000, help="rows of one part")
    parser.add_argument("--fail", choices=["publish"], help="let this step fail")
    parser.add_argument("--url")
    options = parser.parse_args()
    if options.rows < 1 or options.chunk < 1:
        parser.error("--rows and --chunk: give numbers from 1")
    folder: Path = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["FANIN_URL"] = options.url or f"sqlite:///{folder / 'etl.db'}"
    if options.url:
        os.environ.setdefault("FANIN_OUTPUTS", str(folder / "outputs"))  # for results that are large
    os.environ["ETL_WAREHOUSE"] = str(folder / "warehouse.db")
    os.environ["ETL_FAIL"] = options.fail or ""
    return load(write_orders(folder / f"orders-{options.rows}.csv", options.rows), options.rows, options.chunk)


def write_orders(path: Path, rows: int) -> Path:
    """The same rows each time; each twentieth has no amount."""
    chance = random.Random(rows)
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "customer", "amount"])
        for number in range(rows):
            amount = "n/a" if number % 20 == 19 else f"{chance.randrange(10_000) / 100:.2f}"
            writer.writerow([number, chance.choice(CUSTOMERS), amount])
    return path


def load(path: Path, rows: int, chunk: int) -> int:
    from examples.etl.tasks import Chunk, plan
    from examples.etl.warehouse import sums

    batch = next_batch(hashlib.sha256(path.read_bytes() + str(chunk).encode()).hexdigest()[:12])
    chunks = [Chunk(batch=batch, path=str(path), first=n, last=min(n + chunk, rows)) for n in range(0, rows, chunk)]
    before = sums()
    run = plan(chunks, batch).start(run=True).wait()
    after = sums()
    print(f"{batch}: {run.status}")
    for step in run.steps():
        print(f"  {step.name}: {step.status}")
    for table, loads in after.items():
        was, now = (sum(n for n, _ in found.values()) for found in (before[table], loads))
        print(f"{table}: {was} rows before, {now} now")
    mine = {table: loads.pop(batch, None) for table, loads in after.items()}
    for loads in before.values():
        loads.pop(batch, None)  # what a killed run had loaded
    if run.status == "compensated":
        right, what = not any(mine.values()), "as before"
    else:
        known, cents = in_one_loop(path)
        wanted = {"orders": (known, cents), "totals": (len(CUSTOMERS), cents)}
        right, what = run.status == "completed" and mine == wanted, "as they must be: loaded once"
    right = right and after == before
    print(f"the tables are {'' if right else 'NOT '}{what}")
    return 0 if right else 1


def next_batch(content: str) -> str:
    """The load of this content; one that was taken back is tried again under a new name."""
    from examples.etl.tasks import app

    taken_back = {flow.key for flow in app.flows("compensated", limit=1_000)}
    return next(name for n in count(1) if (name := f"etl-{content}-{n}") not in taken_back)


def in_one_loop(path: Path) -> tuple[int, int]:
    """How many rows of the file make sense, and their sum in cents."""
    with open(path, newline="", encoding="utf-8") as file:
        amounts = [row["amount"] for row in csv.DictReader(file)]
    cents = [round(float(amount) * 100) for amount in amounts if amount != "n/a"]
    return len(cents), sum(cents)


if __name__ == "__main__":
    sys.exit(main())
