"""Another service: it hears by webhook that all invoices are out, and books that once, however often it is told.

INVOICES_BOOKS=books.db INVOICES_SECRET=whsec_... uvicorn examples.invoices.receiver:api
"""

from __future__ import annotations

import json
import os
import sqlite3

from fastapi import FastAPI, HTTPException, Request

from fanin import inbox, webhooks

BOOKS = os.environ["INVOICES_BOOKS"]
SECRET = os.environ["INVOICES_SECRET"]
api = FastAPI()
told = 0

with sqlite3.connect(BOOKS) as opened:
    opened.executescript(inbox.ddl("sqlite") + "CREATE TABLE IF NOT EXISTS booked (job text, succeeded integer);")


@api.post("/events")
async def receive(request: Request) -> dict[str, bool]:
    """Check who speaks, then note the event's key and make the change in one transaction."""
    global told
    body = await request.body()
    try:
        key = webhooks.verify(SECRET, request.headers, body)
    except webhooks.BadSignature as problem:
        raise HTTPException(401, str(problem)) from None
    data = json.loads(body)["data"]
    with sqlite3.connect(BOOKS) as books:
        books.execute("BEGIN IMMEDIATE")
        fresh = inbox.once(books, "bookkeeping", key)
        if fresh:
            books.execute("INSERT INTO booked VALUES (?, ?)", (data["job_id"], data["succeeded"]))
    told += 1
    if told % 2 == 1:  # the answer is lost, after the change: it will be told again
        raise HTTPException(503, "the answer was lost")
    return {"applied": fresh}
