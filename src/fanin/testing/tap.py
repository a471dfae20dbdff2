"""Look at the transactions of a store from outside, statement by statement. The product's own runners stay as they are.

A transaction is a generator of statements, so it can be wrapped in another one that sees each statement go out and its
rows come back, inside the transaction. A store that nobody taps pays nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from fanin.protocol.steps import Again, Rows, Statement, Txn, TxnFactory
from fanin.stores.base import Store

T = TypeVar("T")


class Tap:
    """What happens in one call of `Store.run`. Override what is wanted.

    An exception raised from `before`, `after` or `commit` rolls the transaction back; `begin` runs before it was begun
    and `committed` after the database has acknowledged it.
    """

    def begin(self, first: Statement) -> None:
        """Nothing was sent yet; ``first`` will be the transaction's first statement."""

    def before(self, statement: Statement) -> None:
        """The statement goes out next."""

    def after(self, statement: Statement, rows: Rows) -> None:
        """The statement has run and has returned ``rows``."""

    def commit(self) -> None:
        """Every statement has run; COMMIT goes out next."""

    def committed(self) -> None:
        """The commit was acknowledged."""

    def restarted(self) -> None:
        """The transaction begins (again): whatever an earlier try has done is rolled back."""


def tap(store: Store, make: Callable[[], Tap]) -> None:
    """From now on each writing transaction of ``store``, and of the stores that it reserves, is seen by a new tap."""
    run, reserve = store.run, store.reserve

    def tapped(factory: TxnFactory[Any]) -> Any:
        seen = make()
        if (first := first_statement(factory)) is not None:
            seen.begin(first)
        value = run(watched(factory, seen))
        seen.committed()
        return value

    def reserved() -> Store:
        own = reserve()
        tap(own, make)
        return own

    replaced = cast(Any, store)
    replaced.run, replaced.reserve = tapped, reserved


def untap(store: Store) -> None:
    """Undo every `tap` of this very store. Stores that it has reserved meanwhile stay tapped."""
    for name in ("run", "reserve"):
        vars(store).pop(name, None)


def first_statement(factory: TxnFactory[Any]) -> Statement | None:
    """What a transaction would send first. Nothing is sent; a transaction decides nothing before it has read."""
    txn = factory()
    try:
        return next(txn)
    except StopIteration:
        return None
    except Exception:
        return None  # a refusal: it is raised again when the transaction is really run
    finally:
        txn.close()


def watched(factory: TxnFactory[T], seen: Tap) -> TxnFactory[T]:
    """The same transaction, seen by ``seen``."""

    def txn() -> Txn[T]:
        inner = factory()
        seen.restarted()
        try:
            statement = next(inner)
            while True:
                seen.before(statement)
                rows = yield statement
                seen.after(statement, rows)
                statement = inner.send(rows)
        except StopIteration as stop:
            seen.commit()
            value: T = stop.value
            return value
        except Again as again:
            raise Again(watched(again.factory, seen)) from None
        finally:
            inner.close()

    return txn


def label(statement: Statement) -> str:
    """``room.name`` of a statement."""
    return f"{statement.query.room}.{statement.query.name}"
