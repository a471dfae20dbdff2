"""Figures are kept where they are asked for, whoever writes beside them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support import figures


def test_every_line_is_kept_beside_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "made by the first"
    monkeypatch.setenv(figures.VARIABLE, str(folder))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: figures.record("kills", n=n, text="x" * 3000), range(100)))
    figures.record("network", cuts={"request": 3}, seed=7)
    found = figures.recorded(folder)
    assert sorted(line["counts"]["n"] for line in found["kills"]) == list(range(100))
    (line,) = found["network"]
    assert line["counts"] == {"cuts": {"request": 3}, "seed": 7}
    assert "test_every_line_is_kept_beside_the_others" in line["test"]
    assert set(line["versions"]) == {"fanin", "python", "sqlite"}


def test_nothing_is_written_where_nobody_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(figures.VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    figures.record("kills", n=1)
    assert list(tmp_path.iterdir()) == []
    assert '"n": 1' in capsys.readouterr().out
