"""Every stage of the full run, with hardly any parts: it yields its rows, and all that they say can be shown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench import contention, decay, end_to_end, flows, machine, probes, results, stages, tables, tree
from bench.databases import Database
from bench.settings import Setting
from bench.stages import Extent
from tests.support.databases import SQLITE
from tests.support.postgres import Server, shared_server

TINY = Extent(repeat=1, most=12)


@pytest.fixture
def place(database: str, tmp_path: Path) -> Database:
    """One of the databases, as the benchmark knows it."""
    if database == SQLITE:
        return Database("SQLite", str(tmp_path))
    return Database("PostgreSQL", shared_server(database).url())


@pytest.fixture
def postgres(pg_server: Server) -> Database:
    return Database("PostgreSQL", pg_server.url())


def test_a_run_tells_what_it_has_left_in_the_database(place: Database) -> None:
    figures = end_to_end.measure(place, Setting(parts=30, workers=1))
    assert figures["stored_bytes_per_part"] is not None
    if place.name == "PostgreSQL" or Path("/proc").exists():
        assert figures["log_bytes_per_part"] is not None
    versions = figures["row_versions_per_part"]
    if place.name == "PostgreSQL":  # a part is written when it is created, claimed and completed
        assert versions is not None
        assert versions >= 3
    else:
        assert versions is None


def test_the_decay_has_a_figure_for_every_job(place: Database) -> None:
    (row,) = decay.rows(place, total=40, step=20)
    assert [job["parts_before"] for job in row["series"]] == [0, 20]


def test_a_tree_of_any_size_has_five_levels(place: Database) -> None:
    assert [tree.widths(leaves) for leaves in (1_000, 100_000, 1)] == [[5, 5, 5, 4, 2], [10] * 5, [1] * 5]
    (row,) = tree.rows(place, leaves=12)
    assert (row["parts"], row["levels"]) == (12, 5)


def test_a_flow_of_each_shape_completes(place: Database) -> None:
    found = list(flows.rows(place, sizes=(12,), repeat=1))
    assert [(row["shape"], row["steps"]) for row in found] == [("chain", 12), ("layers", 12)]
    assert all(row["run_seconds"] > 0 for row in found)


def test_the_join_is_looked_at_as_often_as_asked(place: Database) -> None:
    assert probes.join(place, times=3)["times"] == 3


def test_a_cell_of_the_contention_settles_every_part_once(postgres: Database) -> None:
    row = contention.row(postgres, connections=3, stripes=2, parts=20, repeat=1)
    assert (row["connections"], row["stripes"], row["parts"]) == (3, 2, 20)
    assert 0 <= row["lock_share"] <= 1


def test_the_machine_is_described(postgres: Database) -> None:
    about = machine.describe([postgres], TINY)
    assert (about["repeat"], about["most"]) == (1, 12)
    assert about["postgresql"]
    assert about["packages"]["fanin"]


def test_the_plan_names_every_stage_and_adds_up() -> None:
    plan = stages.plan(stages.STAGES)
    assert [line.split()[0] for line in plan.splitlines()] == [*(stage.name for stage in stages.STAGES), "together"]


def test_what_takes_long_is_only_run_when_it_is_named() -> None:
    assert {"million", "flows", "decay", "tree"}.isdisjoint(stage.name for stage in stages.chosen([]))
    assert [stage.name for stage in stages.chosen(["decay"])] == ["decay"]
    with pytest.raises(LookupError, match="no stage is called 'sped'; there are: speed, "):
        stages.chosen(["sped"])


def test_the_extent_cuts_and_never_adds() -> None:
    assert (TINY.parts(1_000), TINY.parts(5), Extent().parts(1_000)) == (12, 5, 1_000)


def test_a_stage_replaces_its_own_rows_alone(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    list(results.write(file, "one", [{"n": 1}, {"n": 2}]))
    list(results.write(file, "two", [{"n": 3}]))
    list(results.write(file, "one", [{"n": 4.0123456789}]))
    assert results.read(file) == [{"stage": "two", "n": 3}, {"stage": "one", "n": 4.0123}]


def test_a_row_is_in_the_file_before_the_next_is_measured(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"

    def rows() -> Iterator[dict[str, Any]]:
        yield {"n": 1}
        assert len(results.read(file)) == 1
        yield {"n": 2}

    assert len(list(results.write(file, "one", rows()))) == 2


def test_a_row_is_told_in_a_line() -> None:
    assert tables.line({"kind": "peer", "peer": "X", "parts": 9, "missing": "why"}) == "kind=peer peer=X parts=9 why"
