"""Files that parts leave: in a directory and in a bucket, of winners only, in order, and swept if they do not count."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fanin
from fanin.runtime import outputs, sweeper
from fanin.runtime.objects import Cloud, objects
from fanin.runtime.part import Part
from fanin.testing.inline import Attempt, Inline
from tests.support.moto import s3_server

BUCKET = "s3://fanin-test"


@pytest.fixture(params=["directory", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where outputs lie; ``FANIN_OUTPUTS`` names it."""
    if request.param == "directory":
        chosen = str(tmp_path / "outputs")
    else:
        for name, value in s3_server().items():
            monkeypatch.setenv(name, value)
        chosen = f"{BUCKET}/{tmp_path.name}"
    objects.cache_clear()
    monkeypatch.setenv(outputs.VARIABLE, chosen)
    yield chosen
    objects.cache_clear()


def lying(root: str) -> list[str]:
    """The last two steps of every object that is there."""
    if "://" not in root:
        return sorted("/".join(path.parts[-1:]) for path in Path(root).rglob("*") if path.is_file())
    import obstore

    there = objects(root)
    assert isinstance(there, Cloud)
    return sorted(one["path"].rpartition("/")[2] for batch in obstore.list(there._store) for one in batch)


def claimed(inline: Inline) -> Attempt:
    attempt = inline.claim()
    assert attempt is not None
    return attempt


def test_outputs_come_in_the_order_of_the_parts_with_their_bytes(app: fanin.App, root: str) -> None:
    @app.task
    def page(n: int) -> int:
        part = fanin.current()
        with part.output("page.txt") as path:
            path.write_text(f"page {n}" * 1000)
        part.put("thumb", bytes([n]))
        return n

    @app.task
    def bind(pages: fanin.Joined[int]) -> str:
        return " ".join(output.read().decode()[:6] for output in pages.outputs("page.txt"))

    job = app.map(page, range(3), then=bind)
    app.run_worker(until_idle=True)
    assert job.successor is not None
    assert job.successor.result() == "page 0 page 1 page 2"
    assert [(o.idx, o.name, o.size) for o in job.outputs()] == [
        (n, name, size) for n in range(3) for name, size in (("page.txt", 6000), ("thumb", 1))
    ]
    first = next(iter(job.outputs("thumb")))
    assert first.digest == hashlib.sha256(b"\0").hexdigest()
    assert first.url.startswith(root)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        (b"abc", b"abc"),
        (bytearray(b"abc"), b"abc"),
        ("ä", "ä".encode()),
        (lambda: io.BytesIO(b"abc"), b"abc"),
        (b"", b""),
    ],
    ids=["bytes", "bytearray", "text", "file", "nothing"],
)
def test_put_takes_what_has_bytes(app: fanin.App, root: str, source: Any, found: bytes) -> None:
    @app.task
    def make() -> None:
        fanin.current().put("a", source() if callable(source) else source)

    job = app.submit(make)
    app.run_worker(until_idle=True)
    assert [output.read() for output in job.outputs()] == [found]


def test_put_copies_a_path_and_save_writes_a_whole_file(app: fanin.App, root: str, tmp_path: Path) -> None:
    original = tmp_path / "original"
    original.write_bytes(os.urandom(3_000_000))

    @app.task
    def make() -> None:
        fanin.current().put("copy", original)

    job = app.submit(make)
    app.run_worker(until_idle=True)
    (output,) = job.outputs()
    assert output.save(tmp_path / "saved").read_bytes() == original.read_bytes()
    assert (tmp_path / "saved").stat().st_mode == original.stat().st_mode, "readable for whom any new file is"
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def test_a_result_too_large_for_its_row_lies_outside_and_nobody_notices(
    app: fanin.App, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task
    def wide(n: int) -> str:
        return "ä" * n

    @app.task(mode="async")
    async def also_wide(n: int) -> str:
        return "ä" * n

    @app.task
    def widths(found: fanin.Joined[str]) -> list[int]:
        return [len(text) for text in found]

    for task in (wide, also_wide):
        job = app.map(task, [3, 600_000, 5], then=widths)
        app.run_worker(until_idle=True)
        assert job.successor is not None
        assert job.successor.result() == [3, 600_000, 5]
        assert [len(text) for text in job.results()] == [3, 600_000, 5]
        assert list(job.outputs()) == [], "it is a result, not an output"
    assert lying(root) == [".result", ".result"]


def test_without_a_place_a_large_result_and_an_output_fail_with_the_way_out(
    pg_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.support.databases import migrate_database

    migrate_database(pg_url)
    monkeypatch.delenv(outputs.VARIABLE, raising=False)
    app = fanin.App(pg_url)

    @app.task
    def wide(large: bool) -> str:
        if not large:
            fanin.current().put("a", b"")
        return "x" * 1_000_001

    job = app.map(wide, [True, False])
    app.run_worker(until_idle=True)
    said = [failure.message for failure in job.failures()]
    app.close()
    assert len(said) == 2
    assert all("set FANIN_OUTPUTS to a directory" in error for error in said)


def test_a_zombie_that_comes_back_cannot_leave_an_output_and_what_it_left_is_swept(app: fanin.App, root: str) -> None:
    @app.task(lease="60s")
    def make() -> None:
        """Its outputs are left by the test, as by a handler at that place."""

    inline = Inline(app)
    job = app.submit(make)
    zombie = claimed(inline)
    left = Part(zombie._claim, 60.0, app.store)
    left.put("early", b"zombie")
    late = left.output("late")
    late.__enter__().write_bytes(b"zombie, late")
    inline.lose(zombie)
    second = claimed(inline)
    Part(second._claim, 60.0, app.store).put("early", b"holder")
    second.run()
    second.commit()
    with pytest.raises(fanin.LeaseLost):
        late.__exit__(None, None, None)
    with pytest.raises(fanin.LeaseLost):
        left.put("again", b"zombie")
    assert [(output.name, output.read()) for output in job.outputs()] == [("early", b"holder")]
    assert "late" in lying(root)

    swept = sweeper.sweep(app.store, grace=0.0, longest=60.0)
    assert (swept.kept, swept.removed, swept.unreachable) == (1, 2, 0)
    assert lying(root) == ["early"]
    assert [output.read() for output in job.outputs()] == [b"holder"]


def test_an_upload_that_ends_after_the_sweep_is_removed_by_the_second_one(app: fanin.App, root: str) -> None:
    @app.task(lease="60s", attempts=1)
    def make() -> None: ...

    inline = Inline(app)
    app.submit(make)
    zombie = claimed(inline)
    left = Part(zombie._claim, 60.0, app.store)
    late = left.output("late")
    path = late.__enter__()
    path.write_bytes(b"half")
    inline.lose(zombie)
    sweeper.sweep(app.store, grace=0.0, longest=600.0)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"whole")
    with pytest.raises(fanin.LeaseLost):
        late.__exit__(None, None, None)
    assert lying(root) == ["late"]
    assert sweeper.sweep(app.store, grace=0.0, longest=600.0).forgotten == 0
    inline.skip(601)
    swept = sweeper.sweep(app.store, grace=0.0, longest=600.0)
    assert swept.forgotten == 1
    assert lying(root) == []


def test_a_crash_after_the_upload_and_before_the_commit_leaves_the_next_attempt_its_own_file(
    app: fanin.App, root: str
) -> None:
    @app.task(lease="60s")
    def make() -> int:
        fanin.current().put("a", f"attempt {fanin.current().attempt}")
        return fanin.current().attempt

    inline = Inline(app)
    job = app.submit(make)
    first = claimed(inline).run()
    inline.lose(first)
    assert list(job.outputs()) == []
    inline.run_until_idle()
    assert job.result() == 2
    assert [output.read() for output in job.outputs()] == [b"attempt 2"]
    assert sweeper.sweep(app.store, grace=0.0).removed == 1
    assert [output.read() for output in job.outputs()] == [b"attempt 2"]


def test_a_redrive_leaves_the_outputs_of_succeeded_parts_alone(app: fanin.App, root: str) -> None:
    broken = [True]

    @app.task(attempts=1)
    def make(n: int) -> None:
        fanin.current().put("a", f"{n}, attempt {fanin.current().attempt}")
        if n == 1 and broken[0]:
            raise ValueError("no")

    job = app.map(make, range(2))
    app.run_worker(until_idle=True)
    assert sweeper.sweep(app.store, grace=0.0).removed == 1
    broken[0] = False
    job.redrive()
    app.run_worker(until_idle=True)
    assert [output.read() for output in job.outputs()] == [b"0, attempt 1", b"1, attempt 2"]
    assert sweeper.sweep(app.store, grace=0.0).removed == 0


def test_an_object_that_was_changed_or_removed_is_an_error(
    app: fanin.App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(outputs.VARIABLE, str(tmp_path / "outputs"))

    @app.task
    def make(n: int) -> None:
        fanin.current().put("a", b"abc")

    job = app.map(make, range(2))
    app.run_worker(until_idle=True)
    one, two = job.outputs()
    Path(one.url).write_bytes(b"abd")
    Path(two.url).unlink()
    with pytest.raises(fanin.BrokenOutput, match="is not what part 0 wrote"):
        one.read()
    with pytest.raises(fanin.BrokenOutput, match="is not there"):
        two.save(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_a_host_that_does_not_see_the_directory_does_not_take_its_outputs_for_removed(
    app: fanin.App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(outputs.VARIABLE, str(tmp_path / "outputs"))

    @app.task(attempts=1)
    def make() -> None:
        fanin.current().put("a", b"abc")
        raise ValueError("no")

    app.submit(make)
    app.run_worker(until_idle=True)
    (tmp_path / "outputs").rename(tmp_path / "elsewhere")
    assert sweeper.sweep(app.store, grace=0.0).unreachable == 1
    (tmp_path / "elsewhere").rename(tmp_path / "outputs")
    assert sweeper.sweep(app.store, grace=0.0) == sweeper.Swept(removed=1)
    assert lying(str(tmp_path / "outputs")) == []


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "a\\b", "a\n", "n" * 201, 7], ids=repr)
def test_an_unusable_name_is_refused_before_anything_is_written(app: fanin.App, name: Any) -> None:
    @app.task(attempts=1)
    def make() -> None:
        fanin.current().put(name, b"")

    job = app.submit(make)
    app.run_worker(until_idle=True)
    assert "output name" in next(iter(job.failures())).message


def test_a_block_that_writes_nothing_and_a_source_without_bytes_are_refused(
    app: fanin.App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(outputs.VARIABLE, str(tmp_path / "outputs"))

    @app.task(attempts=1)
    def make(n: int) -> None:
        if n:
            fanin.current().put("a", 7)
        else:
            with fanin.current().output("a"):
                pass

    job = app.map(make, range(2), tolerate=2)
    app.run_worker(until_idle=True)
    first, second = (str(failure.message) for failure in job.failures())
    assert "nothing was written to" in first
    assert "give bytes, text, a path or a file" in second


def test_a_root_that_nobody_knows_is_refused() -> None:
    with pytest.raises(fanin.BadOption, match="give a directory, s3://"):
        objects("ftp://x/y")
