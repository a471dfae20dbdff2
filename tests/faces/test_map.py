"""``fanin map``: what a person sees of it, through the command line."""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec
import pytest

from fanin.cli import exits, main
from tests.faces.terminal import Terminal


def numbers(count: int) -> list[str]:
    return [str(n) for n in range(1, count + 1)]


def test_outputs_get_their_names_and_the_then_command_receives_them_in_order(terminal: Terminal) -> None:
    for name in ("b", "a", "c d"):
        (terminal.folder / f"{name}.txt").write_text(name)
    said = terminal.run(
        "map", "--then", "cat {outs} > all", "--", "tr a-z A-Z < {} > {out}.up", ":::", "b.txt", "a.txt", "c d.txt"
    )
    assert terminal.names() == ["a.txt", "a.up", "all", "b.txt", "b.up", "c d.txt", "c d.up"]
    assert (terminal.folder / "all").read_text() == "BAC D"
    assert re.fullmatch(rb"3/3  \S+  100 %  \d+/s  failed 0    \(job [0-9a-f-]{13}\)\n", said.stderr), said.stderr


def test_the_same_line_again_runs_nothing_and_says_so(terminal: Terminal) -> None:
    line = ["map", "--", "echo {} >> ran.log", ":::", "x", "y"]
    terminal.run(*line)
    again = terminal.run(*line)
    assert sorted(terminal.lines("ran.log")) == ["x", "y"]
    assert b"done before; --again runs it all once more" in again.stderr


def test_again_runs_all_of_it_as_a_new_job(terminal: Terminal) -> None:
    line = ["map", "--", "echo {} >> ran.log", ":::", "x", "y"]
    terminal.run(*line)
    terminal.run(line[0], "--again", *line[1:])
    assert sorted(terminal.lines("ran.log")) == ["x", "x", "y", "y"]
    assert len(terminal.json("jobs")) == 2


def test_keep_order_prints_the_output_of_all_parts_in_the_order_of_the_inputs(terminal: Terminal) -> None:
    # The first waits for the last, so the order in which they end is the reverse.
    command = 'if [ {} = 1 ]; then while [ ! -e last ]; do :; done; fi; [ {} = 4 ] && touch last; echo "part {}"'
    line = ["map", "-k", "-j4", "--", command, ":::", *numbers(4)]
    said = terminal.run(*line)
    assert said.stdout == b"part 1\npart 2\npart 3\npart 4\n"
    assert terminal.run(*line).stdout == said.stdout  # the kept output, though nothing was run


def test_output_is_passed_on_byte_by_byte(terminal: Terminal) -> None:
    (terminal.folder / "data").write_bytes(bytes(range(256)))
    assert terminal.run("map", "--", "cat {}", ":::", "data").stdout == bytes(range(256))


def test_names_of_files_may_hold_anything(terminal: Terminal) -> None:
    names = ["a b", "it's", 'say "hi"', "new\nline", "ünïcödé", "-dash", "$(touch never)", "back\\slash", "%s *", "a;b"]
    for name in names:
        (terminal.folder / name).write_text(name)
    stdin = b"".join(os.fsencode(name) + b"\0" for name in names)
    then = "for f in {outs}; do cat -- \"$f\"; printf '|'; done > all"
    terminal.run("map", "-0", "--outdir", "made", "--then", then, "--", "cat -- {} > {out}.copy", stdin=stdin)
    assert sorted(os.listdir(terminal.folder / "made")) == sorted(f"{name}.copy" for name in names)
    assert (terminal.folder / "all").read_text() == "".join(f"{name}|" for name in names)
    assert not (terminal.folder / "never").exists()


def test_a_name_that_is_not_utf8_works_too(terminal: Terminal) -> None:
    name = os.fsdecode(b"caf\xe9")
    Path(terminal.folder, name).write_text("x")
    terminal.run("map", "--", "cp {} {out}.copy", ":::", name)
    assert (terminal.folder / (name + ".copy")).read_text() == "x"


def test_an_output_that_begins_with_a_dash_is_no_option_for_the_then_command(terminal: Terminal) -> None:
    terminal.run("map", "--then", "cat {outs} > all", "--", "echo x > {out}.o; : {}", ":::", "-n")
    assert (terminal.folder / "all").read_text() == "x\n"


def test_inputs_come_from_files_from_a_pipe_and_from_the_line(terminal: Terminal) -> None:
    (terminal.folder / "list").write_text("one\n\ntwo words\n")
    said = terminal.run("map", "-k", "-a", "list", "--", "echo", ":::", "three")
    assert said.stdout == b"one\ntwo words\nthree\n"
    assert terminal.run("map", "-k", "--", "echo", stdin=b"four\nfive").stdout == b"four\nfive\n"
    assert terminal.run("map", "-k", "-a", "-", "--", "echo", stdin=b"six\n").stdout == b"six\n"


def test_no_inputs_end_at_once_and_the_then_command_runs_with_none(terminal: Terminal) -> None:
    said = terminal.run("map", "--then", "echo then; echo [{outs}] > all", "--", "cp {} {out}", stdin=b"")
    assert (terminal.folder / "all").read_text() == "[]\n"
    assert b"0/0" in said.stderr
    assert b"there were no inputs" in said.stderr


def test_hundreds_of_short_commands(terminal: Terminal) -> None:
    said = terminal.run(
        "map", "-k", "-j4", "--then", "wc -l > count", "--", "echo", "{}", stdin="\n".join(numbers(400)).encode()
    )
    assert said.stdout.decode().split() == numbers(400)
    assert (terminal.folder / "count").read_text().strip() == "400"


def test_two_thousand_outputs_fit_into_the_then_command(sqlite_terminal: Terminal) -> None:
    items = [f"{n:04}-{'x' * 60}" for n in range(2000)]
    sqlite_terminal.run(
        "map", "-q", "-j4", "--then", "cat {outs} > all", "--", "echo {#} > {out}.a-suffix", ":::", *items
    )
    assert sqlite_terminal.lines("all") == numbers(2000)


def test_the_then_command_reads_what_all_parts_printed_in_order(terminal: Terminal) -> None:
    terminal.run(
        "map",
        "--then",
        "cat > all",
        "--",
        "echo part {#}; head -c 100000 /dev/zero | tr '\\0' x; echo",
        ":::",
        "a",
        "b",
    )
    long = "x" * 100_000
    assert (terminal.folder / "all").read_text() == f"part 1\n{long}\npart 2\n{long}\n"


def test_long_output_is_printed_whole(terminal: Terminal) -> None:
    said = terminal.run("map", "-k", "--", "seq 1 {}", ":::", "50000", "3")
    assert said.stdout.decode().split() == [*numbers(50000), *numbers(3)]


def test_results_go_to_files_by_number(terminal: Terminal) -> None:
    line = [
        "map",
        "--results",
        "log",
        "--attempts",
        "1",
        "--",
        "echo out {}; echo err {} >&2; exit {}",
        ":::",
        "0",
        "5",
    ]
    said = terminal.run(*line, code=1)
    assert said.stdout == b""
    found = {path.name: path.read_text() for path in (terminal.folder / "log").iterdir()}
    assert found == {"1.stdout": "out 0\n", "1.stderr": "err 0\n", "2.stdout": "out 5\n", "2.stderr": "err 5\n"}
    (terminal.folder / "log" / "1.stdout").unlink()
    (terminal.folder / "log" / "1.stderr").unlink()
    terminal.run(*line, code=1)
    assert (terminal.folder / "log" / "1.stdout").read_text() == "out 0\n"


def test_a_failure_is_shown_with_the_end_of_what_the_command_said(terminal: Terminal) -> None:
    said = terminal.run("map", "--attempts", "1", "--", "echo no such luck >&2; exit 3", ":::", "an item", code=1)
    text = said.stderr.decode()
    assert "fanin: part 1 ('an item') failed: exit 3\n  | no such luck\n" in text
    assert "1 of 1 parts failed, tolerated 0" in text
    assert "--redrive" in text


def test_a_failing_command_is_tried_as_often_as_asked(terminal: Terminal) -> None:
    said = terminal.run("map", "--attempts", "2", "--", "echo x >> ran.log; exit 1", ":::", "a", code=1)
    assert len(terminal.lines("ran.log")) == 2
    assert b"part 1 ('a'): exit 1; again in" in said.stderr


def test_a_program_that_does_not_exist_is_not_tried_again(terminal: Terminal) -> None:
    said = terminal.run("map", "--", "no-such-program", "{}", ":::", "a", code=1)
    assert b"no-such-program: no such program" in said.stderr
    assert terminal.json("show", terminal.json("jobs")[0]["id"])["account"]["attempts"] == 1


def test_a_command_that_writes_no_output_has_failed(terminal: Terminal) -> None:
    said = terminal.run("map", "--attempts", "1", "--", "true {} {out}.jpg", ":::", "a", code=1)
    assert b"exit 0, but nothing was written to {out}.jpg" in said.stderr


def test_redrive_runs_the_failed_parts_alone(terminal: Terminal) -> None:
    command = "echo {} >> ran.log; [ {} != bad ] || test -e fixed"
    line = ["map", "--attempts", "1", "--then", "echo then >> then.log", "--", command, ":::", "good", "bad"]
    terminal.run(*line, code=1)
    assert terminal.lines("then.log") == []
    said = terminal.run(*line, code=1)
    assert b"--redrive tries these parts again" in said.stderr
    (terminal.folder / "fixed").touch()
    terminal.run(line[0], "--redrive", *line[1:])
    assert sorted(terminal.lines("ran.log")) == ["bad", "bad", "good"]
    assert terminal.lines("then.log") == ["then"]


def test_attempts_count_anew_after_a_redrive(terminal: Terminal) -> None:
    line = ["map", "--attempts", "2", "--", "echo x >> ran.log; exit 1", ":::", "a"]
    terminal.run(*line, code=1)
    terminal.run(line[0], "--redrive", *line[1:], code=1)
    assert len(terminal.lines("ran.log")) == 4


def test_tolerated_failures_are_a_success_and_listed_for_the_then_command(terminal: Terminal) -> None:
    command = "[ {} != bad ] && echo {} > {out}.o || { echo sorry >&2; exit 7; }"
    then = 'cat {outs} > all; cp {failures} failed; [ {failures} = "$FANIN_FAILURES" ] && touch same'
    said = terminal.run(
        "map", "--attempts", "1", "--tolerate", "50%", "--then", then, "--", command, ":::", "a", "bad", "c"
    )
    assert terminal.lines("all") == ["a", "c"]
    assert (terminal.folder / "same").exists()
    assert [msgspec.json.decode(line) for line in terminal.lines("failed")] == [
        {"number": 2, "item": "bad", "status": "failed", "attempt": 1, "error": "exit 7\nsorry"}
    ]
    assert b"1 failed parts were tolerated" in said.stderr


def test_fail_fast_ends_the_job_at_the_first_failure(terminal: Terminal) -> None:
    said = terminal.run(
        "map", "-j1", "--attempts", "1", "--fail-fast", "--", "echo {} >> ran.log; exit 1", ":::", *numbers(50), code=1
    )
    assert len(terminal.lines("ran.log")) < 50
    assert b"abandoned" in said.stderr


def test_a_failed_then_command_fails_the_map_and_redrive_starts_it_again(terminal: Terminal) -> None:
    line = ["map", "--then", "echo x >> then.log; test -e fixed", "--", "true", ":::", "a"]
    said = terminal.run(*line, code=1)
    assert b"the --then command failed: exit 1; --redrive starts it again" in said.stderr
    assert terminal.lines("then.log") == ["x"]
    (terminal.folder / "fixed").touch()
    terminal.run(*line, code=1)
    terminal.run(line[0], "--redrive", *line[1:])
    assert terminal.lines("then.log") == ["x", "x"]


def test_the_key_holds_one_meaning(terminal: Terminal) -> None:
    terminal.run("map", "--key", "mine", "--", "echo", ":::", "a")
    said = terminal.run("map", "--key", "mine", "--", "echo", ":::", "a", "b", code=2)
    assert b"the key 'mine' stands for another command or other inputs" in said.stderr
    terminal.run("map", "--key", "mine", "--attempts", "9", "-j1", "--timeout", "5s", "--", "echo", ":::", "a")


def test_dry_run_shows_the_plan_and_writes_nothing(sqlite_terminal: Terminal) -> None:
    said = sqlite_terminal.run(
        "map", "--dry-run", "-j3", "--tolerate", "2", "--then", "zip {outs}", "--", "cp {} {out}.x", ":::", *numbers(7)
    )
    lines = said.stdout.decode().splitlines()
    assert lines[0] == "7 parts, 3 at once, 3 attempts each, time limit: no limit"
    assert lines[1] == "tolerated failures: 2, gives up: never"
    assert lines[3:] == [*(f"  cp {n} {n}.x" for n in numbers(5)), "  … and 2 more", "then: zip {outs}"]
    assert os.listdir(sqlite_terminal.folder) == []


def test_json_tells_of_every_part_and_of_the_end(terminal: Terminal) -> None:
    said = terminal.run(
        "map", "--json", "-k", "--attempts", "1", "--tolerate", "1", "--then", "echo joined", "--",
        'echo "hello {}" | tee {out}.o; exit {}', ":::", "0", "1",
    )  # fmt: skip
    assert said.stderr == b""
    first, second, end = [msgspec.json.decode(line) for line in said.stdout.splitlines()]
    assert first.pop("seconds") >= 0
    assert first == {
        "event": "part", "number": 1, "item": "0", "status": "succeeded", "attempt": None, "outs": ["0.o"],
        "stdout": "hello 0\n", "stderr": "",
    }  # fmt: skip
    assert second == {
        "event": "part", "number": 2, "item": "1", "status": "failed", "attempt": 1, "error": "exit 1\nhello 1",
    }  # fmt: skip
    assert end["then"]["stdout"] == "joined\n"
    wanted = {"event": "end", "status": "completed", "parts": 2, "succeeded": 1, "failed": 1, "interrupted": False}
    assert {name: end[name] for name in wanted} == wanted


def test_a_wrong_line_is_refused_with_what_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FANIN_URL", "sqlite:///fanin.db")
    for words, hint in [
        (["map", "gzip", ":::", "a"], "the command must stand after --"),
        (["map"], "no command: put it after --"),
        (["map", "-j0", "--", "x", ":::", "a"], "-j 0: at least 1"),
        (["map", "--tolerate", "many", "--", "x", ":::", "a"], "tolerate='many'"),
        (["map", "--timeout", "0", "--", "x", ":::", "a"], "--timeout 0"),
        (["map", "--lease", "1ms", "--", "x", ":::", "a"], "lease=0.001s"),
        (["map", "--nonsense", "--", "x", ":::", "a"], "--nonsense"),
        (["map", "-a", "missing", "--", "x"], "-a missing: No such file"),
        (["map", "--", "x `y {}`", ":::", "a"], "write $(...) instead"),
        (["map", "--outdir", "/proc/none", "--", "x", ":::", "a"], "/proc/none"),
    ]:
        assert main(words) == exits.USAGE
        said = capsys.readouterr().err
        assert said.startswith("fanin: ")
        assert hint in said
        assert said.count("\n") == 1
    assert os.listdir(tmp_path) == []


def test_a_final_name_that_cannot_be_used_is_said_and_the_output_is_kept_until_it_can(terminal: Terminal) -> None:
    (terminal.folder / "a.o").mkdir()
    line = ["map", "--", "echo x >> ran.log; echo {} > {out}.o", ":::", "a"]
    said = terminal.run(*line, code=1)
    assert b"cannot name a.o: Is a directory. It is kept in " in said.stderr
    (terminal.folder / "a.o").rmdir()
    terminal.run(*line)
    assert terminal.lines("a.o") == ["a"]
    assert terminal.lines("ran.log") == ["x"]
    assert terminal.scratch() == []


def test_when_all_commands_fail_only_the_first_are_told_in_full(terminal: Terminal) -> None:
    said = terminal.run(
        "map", "-j4", "--attempts", "2", "--", "exit 3; : {}", ":::", *numbers(30), code=1
    ).stderr.decode()
    assert len(re.findall(r"again in", said)) == 5
    assert len(re.findall(r"failed: exit 3", said)) == 10
    assert "fanin: … and 20 more parts failed\n" in said
