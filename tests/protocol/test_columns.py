"""Lists as PostgreSQL arrays: what is sent is what arrives."""

from __future__ import annotations

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanin.stores.pg_columns import ColumnDumper
from tests.support.postgres import Server

TEXTS = st.text(alphabet=st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=6)
COLUMNS = {
    "text": st.lists(TEXTS | st.sampled_from(['"', "\\", '\\"', "NULL", "{}", ",", '","'])),
    "int": st.lists(st.none() | st.integers(-(2**31), 2**31 - 1)),
    "float8": st.lists(st.none() | st.floats(allow_nan=False)),
    "bool": st.lists(st.none() | st.booleans()),
}


@pytest.fixture
def connection(pg_server: Server):
    with psycopg.connect(pg_server.url(), autocommit=True) as connection:
        connection.adapters.register_dumper(list, ColumnDumper)
        yield connection


@pytest.mark.parametrize("kind", sorted(COLUMNS))
def test_every_column_arrives_as_it_was_sent(connection: psycopg.Connection, kind: str) -> None:
    @given(COLUMNS[kind], st.booleans())
    def arrives(column: list[object], with_null: bool) -> None:
        sent = [*column, None] if with_null else column
        row = connection.execute(f"SELECT %s::{kind}[]", [sent]).fetchone()
        assert row == (sent,)

    arrives()


@pytest.mark.parametrize("column", [["\0"], ["a", "b\0c"], ["a\0", None]], ids=["alone", "inside", "beside a null"])
def test_a_text_that_holds_a_nul_is_refused(connection: psycopg.Connection, column: list[str | None]) -> None:
    with pytest.raises(psycopg.DataError, match="NUL"):
        connection.execute("SELECT %s::text[]", [column])


def test_a_column_is_written_in_the_encoding_of_the_connection(connection: psycopg.Connection) -> None:
    connection.execute("SET client_encoding = 'LATIN1'")
    assert connection.execute("SELECT %s::text[]", [["é", "ü"]]).fetchone() == (["é", "ü"],)
