"""Clean the rows of a CSV file in chunks, add up what each customer has paid, load both, and publish a report.

The loads say how they are taken back. Workers find this app as ``examples.etl.tasks:app``; FANIN_URL is the database of
the jobs, ETL_WAREHOUSE the SQLite file with the tables, and ETL_FAIL=publish lets the last step fail.
"""

from __future__ import annotations

import csv
import json
import os
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import TypedDict

import fanin
from examples.etl.warehouse import FILE, transaction
from fanin import inbox

app = fanin.App(os.environ.get("FANIN_URL", "sqlite:///etl.db"))


class Chunk(TypedDict):
    """Rows ``first`` to ``last`` (not with it) of the file, for the load that is called ``batch``."""

    batch: str
    path: str
    first: int
    last: int


class Clean(TypedDict):
    """What could be read of a chunk: (id, customer, cents), and how many rows could not."""

    batch: str
    first: int
    rows: list[tuple[int, str, int]]
    refused: int


class Totals(TypedDict):
    """Cents by customer."""

    batch: str
    cents: dict[str, int]


@app.task
def clean(chunk: Chunk) -> Clean:
    """Map: names in one spelling, amounts in cents; a row that makes no sense is counted and left out."""
    rows, refused = [], 0
    with open(chunk["path"], newline="", encoding="utf-8") as file:
        for row in islice(csv.DictReader(file), chunk["first"], chunk["last"]):
            try:
                rows.append((int(row["id"]), row["customer"].strip().title(), round(float(row["amount"]) * 100)))
            except ValueError:
                refused += 1
    return Clean(batch=chunk["batch"], first=chunk["first"], rows=rows, refused=refused)


@app.task
def add_up(chunks: fanin.Joined[Clean]) -> Totals:
    """Reduce: what each customer has paid."""
    cents: Counter[str] = Counter()
    batch = ""
    for chunk in chunks:
        batch = chunk["batch"]
        for _, customer, paid in chunk["rows"]:
            cents[customer] += paid
    return Totals(batch=batch, cents=cents)


@app.task(attempts=10, backoff=0.1)
def load_orders(chunk: Clean) -> Clean:
    """Load a chunk. ``inbox.once`` stands in the same transaction: a second attempt, or one that comes too late, finds
    that the chunk has been loaded, also if it has been taken back since."""
    with transaction() as warehouse:
        if inbox.once(warehouse, "load orders", f"{chunk['batch']} {chunk['first']}"):
            rows = [(chunk["batch"], *row) for row in chunk["rows"]]
            warehouse.executemany("INSERT INTO orders VALUES (?, ?, ?, ?)", rows)
    return chunk


@app.task(attempts=10, backoff=0.1)
def take_orders_back(chunk: Clean) -> None:
    """Undo: what was loaded of this chunk goes. It may be run twice."""
    with transaction() as warehouse:
        ids = [(chunk["batch"], number) for number, _, _ in chunk["rows"]]
        warehouse.executemany("DELETE FROM orders WHERE batch = ? AND id = ?", ids)


@app.task(attempts=10, backoff=0.1)
def load_totals(totals: fanin.Joined[Totals]) -> str:
    """Load the sums, once."""
    (found,) = totals
    with transaction() as warehouse:
        if inbox.once(warehouse, "load totals", found["batch"]):
            rows = [(found["batch"], customer, cents) for customer, cents in found["cents"].items()]
            warehouse.executemany("INSERT INTO totals VALUES (?, ?, ?)", rows)
    return found["batch"]


@app.task(attempts=10, backoff=0.1)
def take_totals_back(batch: str) -> None:
    """Undo: the sums of this load go."""
    with transaction() as warehouse:
        warehouse.execute("DELETE FROM totals WHERE batch = ?", (batch,))


@app.task
def publish(orders: fanin.Joined[Clean], batch: fanin.Joined[str]) -> str:
    """Write the report that others read. If it cannot be, the loads are taken back."""
    if os.environ.get("ETL_FAIL") == "publish":
        raise fanin.Permanent("publish was told to fail (ETL_FAIL)")
    report = FILE.with_name("report.json")
    loaded = [(len(chunk["rows"]), chunk["refused"]) for chunk in orders]
    facts = {"batch": next(iter(batch)), "rows": sum(n for n, _ in loaded), "refused": sum(n for _, n in loaded)}
    half = report.with_suffix(f".{fanin.current().attempt}")
    half.write_text(json.dumps(facts))
    half.replace(report)
    return str(report)


def plan(chunks: Sequence[Chunk], key: str) -> fanin.Flow:
    """The flow. ``undo=`` says how a step is taken back if a later one fails."""
    flow = app.flow("etl", key=key)
    cleaned = flow.map(clean, chunks)
    orders = flow.map(load_orders, cleaned, undo=take_orders_back)
    totals = flow.step(load_totals, after=flow.step(add_up, after=cleaned), undo=take_totals_back)
    flow.step(publish, after=[orders, totals])
    return flow
