"""Take one guard out of the program under torture. Only its own processes are changed, and only for this run."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple, cast

from fanin.domain.errors import BadOption
from fanin.protocol import close, counting, ending, finish, outbox
from fanin.protocol.steps import Again, Query, Statement, Txn, TxnFactory
from fanin.runtime.part import Part
from fanin.stores.base import Store
from fanin.testing.mutate import replaced
from fanin.testing.tap import label

VARIABLE = "FANIN_TORTURE_BREAK"
Change = tuple[str, str]
_FOREVER = ExitStack()


class Break(NamedTuple):
    sentence: str
    changes: tuple[tuple[Query, tuple[Change, ...]], ...] = ()
    """Statements and the pieces of text that are replaced in them."""
    patch: Callable[[], None] | None = None
    """What is changed beside the SQL."""
    stalls: bool = False
    """Nothing is wrong in what is written: it shows when something never happens."""
    commit_after: str | None = None
    """Every transaction is committed in the middle, after this statement."""


_TOKEN_PG = "AND p.status = 'running' AND p.attempt = u.attempt AND p.claim_id = u.claim_id"
_TOKEN_LITE = "AND p.status = 'running' AND p.attempt = m.attempt AND p.claim_id = m.claim_id"

_ANSWER = "RETURNING p.job_id, p.idx, p.attempt, p.claim_id,"
_ANSWER_PG = "RETURNING p.job_id, p.idx, m.attempt, m.claim_id,"
_ANSWER_LITE = "RETURNING p.job_id, p.idx, {}, {},".format(
    *(f"(SELECT value->>{n} FROM json_each(:rows) WHERE value->>0 = job_id AND value->>1 = idx)" for n in (2, 3))
)


def _key_with_attempt() -> None:
    cast(Any, Part).idempotency_key = property(lambda part: f"{part.job_id}/{part.idx}/{part.attempt}")


BREAKS = {
    "claim": Break(
        "a report is taken from whoever says it, not from the holder alone",
        (
            (
                finish.SQL.settle_parts,
                (
                    (_TOKEN_PG, "AND p.status = 'running'"),
                    (_TOKEN_LITE, "AND p.status = 'running'"),
                    ("SELECT held.ctid AS place,", "SELECT held.ctid AS place, u.attempt, u.claim_id,"),
                    # The answer still carries the speaker's token, or the worker would notice by itself.
                    (f"{_ANSWER} p.stripe, p.status;", f"{_ANSWER_PG} p.stripe, p.status;"),
                ),
            ),
        ),
    ),
    "closed": Break(
        "a part may still count after its job was closed",
        ((counting.SQL.count_down, ((" AND NOT closed", ""),)),),
    ),
    "ended": Break(
        "a job that has ended may be ended again",
        (
            (close.SQL.standing, (("SELECT status,", "SELECT 'running',"),)),
            (ending.SQL.end_job, ((" AND status IN ('open', 'running')", ""),)),
            (ending.SQL.announce, (("fanin.clock())", "fanin.clock()) ON CONFLICT DO NOTHING"),)),
        ),
    ),
    "cursor": Break(
        "a relay looks for events that are newer than the last one that has left",
        (
            (
                outbox.SQL.claim_events,
                (
                    (
                        "AND (o.seq = 1 OR",
                        "AND o.at > (SELECT coalesce(max(w.at), 0) FROM fanin.outbox AS w WHERE w.bucket = :bucket "
                        "AND w.status = 'published') AND (o.seq = 1 OR",
                    ),
                ),
            ),
        ),
        stalls=True,
    ),
    "key": Break("the key of a call outside names the attempt", patch=_key_with_attempt),
    "counter": Break(
        "the counter is moved in a transaction of its own, after the parts", commit_after="finish.settle_parts"
    ),
    "successor": Break(
        "the successor is created in a transaction of its own, after the end", commit_after="ending.announce"
    ),
}


def check(name: str) -> Break:
    """The break of a name. Raises `BadOption` for an unknown one."""
    if name not in BREAKS:
        known = "; ".join(f"{key} ({found.sentence})" for key, found in BREAKS.items())
        raise BadOption(f"there is no guard {name!r} to break; there are: {known}")
    return BREAKS[name]


def patch_statements() -> None:
    """For the rest of this process, change the statements of the break that the environment names, if any."""
    name = os.environ.get(VARIABLE)
    if not name:
        return
    found = check(name)
    if found.patch is not None:
        found.patch()
    for query, changes in found.changes:
        _FOREVER.enter_context(replaced(query, *changes))
        if (lite := query.texts["lite"]).count(_ANSWER_PG):  # an SQLite RETURNING knows the written table alone
            query.texts = {**query.texts, "lite": lite.replace(_ANSWER_PG, _ANSWER_LITE)}


def split_transactions(store: Store) -> None:
    """Commit this store's transactions in the middle, if the break that the environment names says where."""
    name = os.environ.get(VARIABLE)
    where = check(name).commit_after if name else None
    if where is None:
        return
    run: Callable[[TxnFactory[Any]], Any] = store.run
    cast(Any, store).run = lambda factory: run(_split(factory, where))


def _split(factory: TxnFactory[Any], where: str) -> TxnFactory[Any]:
    def txn() -> Txn[Any]:
        inner = factory()
        try:
            statement = next(inner)
            while True:
                rows = yield statement
                if label(statement) == where:
                    yield _COMMIT
                    yield _BEGIN
                statement = inner.send(rows)
        except StopIteration as stop:
            return stop.value
        except Again as again:
            raise Again(_split(again.factory, where)) from None
        finally:
            inner.close()

    return txn


def _plain(pg: str, lite: str) -> Statement:
    return Query("break", "transaction", (), {"pg": pg, "lite": lite})()


_COMMIT = _plain("COMMIT", "COMMIT")
_BEGIN = _plain("BEGIN ISOLATION LEVEL READ COMMITTED", "BEGIN IMMEDIATE")
