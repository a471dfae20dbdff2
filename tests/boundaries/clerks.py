"""A clerk applies changes to its own database in one transaction, through one kind of connection."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import apsw
import psycopg

from fanin import fence, inbox
from tests.support.postgres import Server
from tests.support.schemas import schema_of_its_own

LEDGER = "CREATE TABLE IF NOT EXISTS ledger (what text NOT NULL)"
Change = Callable[[Any], None]


@contextmanager
def place(server: Server | None, folder: Path) -> Iterator[str]:
    """The address of an empty database of its own."""
    if server is None:
        yield f"sqlite:///{folder / 'consumer.db'}"
        return
    with schema_of_its_own(server) as schema:
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute(f'CREATE SCHEMA "{schema}"')
        yield f"{server.url()}?options=-csearch_path%3D{schema}"


class Clerk:
    """``deliver`` an event and ``write`` under a fence: what a consumer does, in its own transaction."""

    dialects: ClassVar[tuple[str, ...]] = ("sqlite", "postgresql")

    redeliveries: ClassVar[int] = 100

    def __init__(self, address: str) -> None:
        self.address = address
        self.opened = ExitStack()
        self.path = address.removeprefix("sqlite:///")
        self.dialect = "sqlite" if address.startswith("sqlite") else "postgresql"

    def make_tables(self) -> None:
        script = f"{inbox.ddl(self.dialect)}{fence.ddl(self.dialect)}{LEDGER};"
        if self.dialect == "sqlite":
            connection = sqlite3.connect(self.path)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(script)
            connection.close()
        else:
            with psycopg.connect(self.address, autocommit=True) as there:
                there.execute(script)

    def ledger(self) -> list[str]:
        """Everything that was written, sorted."""
        return [str(row[0]) for row in self.look("SELECT what FROM ledger ORDER BY what")]

    def look(self, statement: str) -> list[tuple[Any, ...]]:
        if self.dialect == "sqlite":
            connection = sqlite3.connect(self.path)
            rows: list[tuple[Any, ...]] = connection.execute(statement).fetchall()
            connection.close()
            return rows
        with psycopg.connect(self.address) as there:
            return there.execute(statement).fetchall()

    def deliver(self, consumer: str, key: str, dies: bool = False) -> bool:
        """One delivery: note the key, apply the change once, commit. dies: before the commit."""

        def change(connection: Any) -> bool:
            fresh = inbox.once(connection, consumer, key)
            if fresh:
                self.put(connection, f"{consumer} {key}")
            if dies:
                raise Died
            return fresh

        return bool(self.within(change))

    def write(self, resource: str, token: int, what: str) -> None:
        def change(connection: Any) -> None:
            fence.guard(connection, resource, token)
            self.put(connection, what)

        self.within(change)

    def forget(self, older_than: str, **options: Any) -> int:
        return int(self.within(lambda connection: inbox.forget(connection, older_than, **options)))

    def within(self, change: Callable[[Any], Any]) -> Any:
        """The change in one transaction."""
        raise NotImplementedError

    def put(self, connection: Any, what: str) -> None:
        """Write a line into the ledger, in the open transaction."""
        raise NotImplementedError

    def careless(self) -> list[Any]:
        """Connections which commit each statement by itself; close() closes them."""
        raise NotImplementedError

    def close(self) -> None:
        """Close what is open."""
        self.opened.close()


class Died(Exception):
    """The consumer did not come to its commit."""


class Psycopg(Clerk):
    dialects = ("postgresql",)

    def within(self, change: Callable[[Any], Any]) -> Any:
        with psycopg.connect(self.address, autocommit=True) as connection, connection.transaction():
            return change(connection)

    def put(self, connection: Any, what: str) -> None:
        connection.execute("INSERT INTO ledger VALUES (%s)", [what])

    def careless(self) -> list[Any]:
        return [psycopg.connect(self.address, autocommit=True)]


class PsycopgDicts(Psycopg):
    """Without autocommit, with rows that are dicts."""

    def within(self, change: Callable[[Any], Any]) -> Any:
        with psycopg.connect(self.address, row_factory=psycopg.rows.dict_row) as connection:
            return change(connection)


class Sqlite3(Clerk):
    dialects = ("sqlite",)

    def within(self, change: Callable[[Any], Any]) -> Any:
        connection = sqlite3.connect(self.path, timeout=60)
        try:
            with connection:
                return change(connection)
        finally:
            connection.close()

    def put(self, connection: Any, what: str) -> None:
        connection.execute("INSERT INTO ledger VALUES (?)", [what])

    def careless(self) -> list[Any]:
        return [sqlite3.connect(self.path, isolation_level=None)]


class Apsw(Sqlite3):
    def within(self, change: Callable[[Any], Any]) -> Any:
        connection = apsw.Connection(self.path)
        connection.set_busy_timeout(60_000)
        try:
            with connection:
                return change(connection)
        finally:
            connection.close()

    def careless(self) -> list[Any]:
        return [apsw.Connection(self.path)]


class Alchemy(Clerk):
    """SQLAlchemy's Connection."""

    def within(self, change: Callable[[Any], Any]) -> Any:
        with self.engine.begin() as connection:
            return change(connection)

    def put(self, connection: Any, what: str) -> None:
        from sqlalchemy import text

        connection.execute(text("INSERT INTO ledger VALUES (:what)"), {"what": what})

    def careless(self) -> list[Any]:
        from sqlalchemy.orm import Session

        loose = self.engine.execution_options(isolation_level="AUTOCOMMIT")
        return [loose.connect(), Session(loose)]

    @cached_property
    def engine(self) -> Any:
        from sqlalchemy import create_engine

        made = create_engine(
            self.address.replace("postgresql://", "postgresql+psycopg://"),
            connect_args={"timeout": 60} if self.dialect == "sqlite" else {},
        )
        self.opened.callback(made.dispose)
        return made


class AlchemySession(Alchemy):
    def within(self, change: Callable[[Any], Any]) -> Any:
        from sqlalchemy.orm import Session

        with Session(self.engine) as session, session.begin():
            return change(session)


class Django(Clerk):
    def within(self, change: Callable[[Any], Any]) -> Any:
        from django.db import transaction

        with self.there() as connection, transaction.atomic(using="consumer"):
            return change(connection)

    def put(self, connection: Any, what: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO ledger VALUES (%s)", [what])

    def careless(self) -> list[Any]:
        return [self.opened.enter_context(self.there())]

    @contextmanager
    def there(self) -> Iterator[Any]:
        import django
        from django.conf import settings
        from django.db import connections

        if not settings.configured:
            settings.configure(DATABASES={"default": {}}, USE_TZ=True)
            django.setup()
        connections.databases["consumer"] = self.database()
        connections["consumer"] = connections.create_connection("consumer")
        try:
            yield connections["consumer"]
        finally:
            connections["consumer"].close()

    def database(self) -> dict[str, Any]:
        from django.db import connections

        if self.dialect == "sqlite":
            named: dict[str, Any] = {
                "ENGINE": "django.db.backends.sqlite3",
                "NAME": self.path,
                "OPTIONS": {"timeout": 60},
            }
        else:
            known: dict[str, Any] = psycopg.conninfo.conninfo_to_dict(self.address)
            named = {
                "ENGINE": "django.db.backends.postgresql", "NAME": known["dbname"], "USER": known["user"],
                "HOST": known["host"], "PORT": known["port"], "OPTIONS": {"options": known["options"]},
            }  # fmt: skip
        return {**connections.databases["default"], **named}


class Asynchronous(Clerk):
    """What is the same in the asynchronous kinds: a loop for each transaction."""

    redeliveries = 10

    def deliver(self, consumer: str, key: str, dies: bool = False) -> bool:
        async def change(connection: Any) -> bool:
            fresh = await inbox.once_async(connection, consumer, key)
            if fresh:
                await self.put_async(connection, f"{consumer} {key}")
            if dies:
                raise Died
            return fresh

        return bool(asyncio.run(self.within_async(change)))

    def write(self, resource: str, token: int, what: str) -> None:
        async def change(connection: Any) -> None:
            await fence.guard_async(connection, resource, token)
            await self.put_async(connection, what)

        asyncio.run(self.within_async(change))

    def forget(self, older_than: str, **options: Any) -> int:
        return int(
            asyncio.run(self.within_async(lambda connection: inbox.forget_async(connection, older_than, **options)))
        )

    def careless(self) -> list[Any]:
        return []

    async def within_async(self, change: Callable[[Any], Any]) -> Any:
        raise NotImplementedError

    async def put_async(self, connection: Any, what: str) -> None:
        raise NotImplementedError


class PsycopgAsync(Asynchronous):
    dialects = ("postgresql",)

    async def within_async(self, change: Callable[[Any], Any]) -> Any:
        async with await psycopg.AsyncConnection.connect(self.address) as connection:
            return await change(connection)

    async def put_async(self, connection: Any, what: str) -> None:
        await connection.execute("INSERT INTO ledger VALUES (%s)", [what])


class AlchemyAsync(Asynchronous):
    """SQLAlchemy's AsyncConnection."""

    async def within_async(self, change: Callable[[Any], Any]) -> Any:
        engine = self.engine()
        try:
            async with engine.begin() as connection:
                return await change(connection)
        finally:
            await engine.dispose()

    async def put_async(self, connection: Any, what: str) -> None:
        from sqlalchemy import text

        await connection.execute(text("INSERT INTO ledger VALUES (:what)"), {"what": what})

    def engine(self) -> Any:
        from sqlalchemy.ext.asyncio import create_async_engine
        from sqlalchemy.pool import NullPool

        address = self.address.replace("postgresql://", "postgresql+psycopg://")
        options = {"connect_args": {"timeout": 60}} if self.dialect == "sqlite" else {}
        return create_async_engine(address.replace("sqlite:", "sqlite+aiosqlite:"), poolclass=NullPool, **options)


class AlchemyAsyncSession(AlchemyAsync):
    async def within_async(self, change: Callable[[Any], Any]) -> Any:
        from sqlalchemy.ext.asyncio import AsyncSession

        engine = self.engine()
        try:
            async with AsyncSession(engine) as session, session.begin():
                return await change(session)
        finally:
            await engine.dispose()


CLERKS: list[type[Clerk]] = [
    Psycopg, PsycopgDicts, PsycopgAsync, Sqlite3, Apsw, Alchemy, AlchemySession, AlchemyAsync, AlchemyAsyncSession,
    Django,
]  # fmt: skip
