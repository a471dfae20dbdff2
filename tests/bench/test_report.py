"""The report: numbers as people read them, and documents that say what the rows say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench import results, summary
from bench.report import files, markdown, parts, plots, targets
from bench.report import summary as overview
from bench.settings import Setting

ROWS = results.read(results.FILE)


def run(total: float, submitted: float = 100.0) -> dict[str, Any]:
    return {"total_seconds": total, "parts_per_second": 10 / total, "submit_parts_per_second": submitted,
            "fill_parts_per_second": 200.0}  # fmt: skip


def test_the_document_is_what_the_program_writes() -> None:
    assert files.DOCUMENT.read_text("utf-8") == files.document(ROWS), "run `make bench-report`"


def test_the_readme_has_the_figures_of_the_rows() -> None:
    text = files.README.read_text("utf-8")
    assert files.readme(text, ROWS) == text, "run `make bench-report`"


def test_every_table_of_the_template_is_made_and_shown() -> None:
    shown = files.TEMPLATE.read_text("utf-8")
    assert [name for name in parts.tables([]) if f"{{{{{name}}}}}" not in shown] == []
    assert "{{" not in files.document([])


def test_what_was_not_measured_says_so() -> None:
    assert parts.tables([])["decay"] == parts.NOT_YET


def test_a_report_without_rows_is_refused() -> None:
    with pytest.raises(LookupError, match="there are no results yet"):
        list(files.write([]))


def test_a_readme_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="no place for the figures"):
        files.readme("# fanin", [])


def test_a_trial_is_not_shown_in_the_readme() -> None:
    peer = {"stage": "peers", "kind": "peer", "peer": "X", "own": False, "database": "redis", "parts": 9,
            "parts_per_second": 7.0}  # fmt: skip
    full = {"stage": "peers", "kind": "machine", "repeat": 5, "most": None}
    assert "| X | Redis | 9 | 7.00 |" in overview.figures([full, peer])
    for trial in ({**full, "repeat": 4}, {**full, "most": 9}):
        assert overview.figures([trial, peer]) == overview.NOT_YET


def test_every_plot_is_drawn_in_both_forms(tmp_path: Path) -> None:
    names = {file.name for file in plots.draw(ROWS, tmp_path)}
    assert names == {"peers.svg", "peers.png", "sizes.svg", "sizes.png"}
    assert all((tmp_path / name).stat().st_size for name in names)


def test_the_share_of_the_limit_is_the_median_of_neighbouring_runs() -> None:
    runs, limits = [run(2.0), run(4.0), run(10.0)], [run(1.0), run(1.0), run(1.0)]
    row = summary.row("SQLite", Setting(parts=10, workers=1), runs, limits)
    assert (row["share_of_limit"], row["share_of_limit_low"], row["share_of_limit_high"]) == (0.25, 0.1, 0.5)
    assert (row["submit_share_of_limit"], row["submit_share_of_fill"]) == (1.0, 0.5)


def test_a_figure_that_one_run_could_not_tell_is_the_median_of_the_others() -> None:
    assert summary.medians([{"a": 1.0}, {"a": None}, {"a": 3.0}]) == {"a": 2.0}
    assert summary.medians([{"a": None}]) == {"a": None}


@pytest.mark.parametrize(("share", "value"), [(0.5, 50.0), (0.99, 99.0), (1.0, 100.0), (0.0, 1.0)])
def test_a_percentile_is_a_value_that_was_seen(share: float, value: float) -> None:
    assert summary.percentile([float(n) for n in range(100, 0, -1)], share) == value


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (23456.7, "23 500"), (9999.0, "10 000"), (12.345, "12.3"), (0.01234, "0.0123"), (999.6, "1 000")],
)
def test_numbers_have_three_digits_that_mean_something(value: float, shown: str) -> None:
    assert markdown.number(value) == shown


def test_a_table_shows_a_dash_for_what_nobody_knows() -> None:
    table = markdown.table([("a", "a", str), ("b", "b", markdown.percent)], [{"a": 1}, {"a": 2, "b": 0.5}])
    assert table == "| a | b |\n| --- | --- |\n| 1 | — |\n| 2 | 50 % |"


def measured(**figures: Any) -> list[dict[str, Any]]:
    row = {"stage": "speed", "kind": "speed", "database": "PostgreSQL", "parts": 10_000, "workers": 2, **figures}
    return [row, {**row, "database": "SQLite"}]


def test_a_target_is_met_missed_or_not_measured() -> None:
    def verdict(rows: list[dict[str, Any]]) -> str:
        return next(line for line in targets.table(rows).splitlines() if "| submit, " in line)

    assert verdict([]).endswith("| at least 50 % | — | not measured |")
    assert verdict(measured(submit_share_of_fill=0.5)).endswith("| PostgreSQL 50 %, SQLite 50 % | met |")
    good, bad = measured(submit_share_of_fill=0.8)[0], measured(submit_share_of_fill=0.4)[1]
    assert verdict([good, bad]).endswith("| PostgreSQL 80 %, SQLite 40 % | **missed** |")
    trial = {"stage": "speed", "kind": "machine", "most": 10_000}
    assert verdict([trial, good, bad]).endswith("| not measured |")
    assert targets.misses([trial, good, bad]) == targets.misses([])


def test_a_miss_is_followed_by_what_is_known_about_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = measured(share_of_limit=0.1, submit_share_of_fill=0.2)
    monkeypatch.setattr(targets, "NOTES", tmp_path / "misses.md")
    targets.NOTES.write_text("Not shown.\n\n## submit\n\nIt waits for the disk.\n\n## join\n\nNot missed.\n", "utf-8")
    first, second = targets.misses(rows).split("\n\n")
    assert first.startswith("**PostgreSQL, 10 000 empty parts") and first.endswith("Not looked into yet.")  # noqa: PT018
    assert second.startswith("**submit, 10 000 parts") and second.endswith(" It waits for the disk.")  # noqa: PT018
    assert targets.misses([]) == "No target that was measured was missed."


def test_the_fastest_library_that_keeps_its_work_is_the_one_to_beat() -> None:
    def peer(name: str, store: str, speed: float, times: float) -> dict[str, Any]:
        return {"stage": "peers", "kind": "peer", "peer": name, "own": False, "database": store, "parts": 9,
                "parts_per_second": speed, "fanin_postgres_times": times}  # fmt: skip

    rows = [peer("Pool", "memory", 900.0, 0.5), peer("Quick", "redis", 90.0, 5.0), peer("Slow", "redis", 9.0, 50.0)]
    assert targets.TARGETS[0].values(rows) == {"Quick:": 5.0}


def test_every_note_belongs_to_a_target() -> None:
    assert targets.known(targets.NOTES.read_text("utf-8")).keys() <= {target.key for target in targets.TARGETS}
