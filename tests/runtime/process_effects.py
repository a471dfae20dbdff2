"""A task that runs in a process of its own and wants things done outside."""

from __future__ import annotations

import os

import fanin

app = fanin.App("sqlite:///unused.db")


@app.effect("mail", mode="idempotent")
def send(request: dict[str, str | int], key: str) -> None:
    raise AssertionError("the worker's own application performs it")


@app.effect("now", mode="at_most_once")
def call(request: int, key: str) -> str:
    return "in a child"


@app.task(mode="process")
def order(n: int) -> int:
    part = fanin.current()
    part.effect("mail", {"to": "a", "copies": n})
    part.effect("now", n, now=True)
    return os.getpid()
