"""docs/proof.md says what was seen: sums, faults, and what did not run."""

from __future__ import annotations

from tools.proof import ABOUT, Ran, merged, report

VERSIONS = {"python": "3.11"}
TORTURE = Ran("torture on SQLite", 7, 60.0, 0, "torture of sqlite:////a/b/torture.db, seed 7\nPASS  replay\n")


def entry(**counts: object) -> dict[str, object]:
    return {"counts": counts, "versions": VERSIONS, "long": False}


def test_numbers_are_added_dicts_merged_and_texts_collected() -> None:
    first = {"cuts": 3, "verdicts": {"ok": 1}, "seeds": [1], "said": "a", "per": {"x": {"n": 1}}}
    second = {"cuts": 4, "verdicts": {"ok": 2, "lost": 5}, "seeds": [2, 1], "said": "a", "per": {"x": {"n": 2}}}
    assert merged([first, second]) == {
        "cuts": 7, "verdicts": {"ok": 3, "lost": 5}, "seeds": [1, 2], "said": ["a"], "per": {"x": {"n": 3}},
    }  # fmt: skip


def test_the_page_holds_the_figures_of_every_suite_and_no_place_of_the_machine() -> None:
    recorded = {suite: [entry(cuts=1200), entry(cuts=34)] for suite in ABOUT} | {"network": [entry(cuts=5)]}
    page = report([Ran("model", 7, 61.0, 0, "54 passed in 9.1s\n"), TORTURE], recorded, [], 7, 20.0)
    assert "**Everything held.** 2 runs, 2 minutes." in page
    assert page.count("| cuts | 1,234 |") == len(ABOUT)
    assert "### network, the short form" in page
    assert "| cuts | 5 |" in page
    assert "| model | 7 | 1.0 | 54 passed |" in page
    assert "torture of sqlite:///torture.db, seed 7" in page
    assert "| postgresql | postgres (PostgreSQL) " in page


def test_a_suite_that_failed_or_left_nothing_is_named() -> None:
    page = report(
        [Ran("races", 7, 1.0, 1, "1 failed\n"), Ran("crashes", 7, 1.0, 3, "")], {}, ["races", "crashes"], 7, 5.0
    )
    assert "Not everything held: races, crashes" in page
    assert "it printed nothing, exit 3" in page
    assert page.count("No figures: the suite did not run to its end.") == len(ABOUT)
