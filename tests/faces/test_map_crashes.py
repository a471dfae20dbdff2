"""``fanin map`` under kill -9, signals, lost leases and several terminals: what ran, what was kept, what is left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.faces.terminal import PATIENCE_SECONDS, Terminal, alive, until


def numbers(count: int) -> list[str]:
    return [str(n) for n in range(1, count + 1)]


HELD = "echo {#} >> begun.log; while [ ! -e go ]; do sleep 0.02; done; "
"""A command that says that it has begun and waits for the test."""


def test_after_kill_9_of_the_whole_group_only_unfinished_parts_run_again(terminal: Terminal) -> None:
    line = ["map", "-j3", "--then", "cat {outs} > all; echo x >> then.log", "--"]
    line += [
        "echo {#} >> begun.log; echo {} > {out}.o; [ {#} -lt 20 ] || test -e go || exec sleep 60",
        ":::",
        *numbers(40),
    ]
    first = terminal.start(*line)
    until(lambda: len(terminal.lines("begun.log")) >= 22, "three commands hang")
    until(lambda: len(list(terminal.folder.glob("*.o"))) == 19, "the others are done")
    before = terminal.lines("begun.log")
    done = {path.name for path in terminal.folder.glob("*.o")}
    terminal.kill(first)
    terminal.expire()
    (terminal.folder / "go").touch()
    terminal.run(*line)
    again = terminal.lines("begun.log")[len(before) :]
    finished = {name.removesuffix(".o") for name in done}
    assert finished.isdisjoint(again), "a finished part ran again"
    assert sorted(map(int, again)) == list(range(20, 41))
    assert terminal.lines("all") == numbers(40)
    assert terminal.lines("then.log") == ["x"]
    assert terminal.scratch() == []


def test_kill_9_leaves_no_command_behind(terminal: Terminal) -> None:
    process = terminal.start("map", "-j2", "--", "echo $$ >> pids.log; exec sleep 600", ":::", "a", "b")
    until(lambda: len(terminal.lines("pids.log")) == 2, "both commands run")
    pids = [int(pid) for pid in terminal.lines("pids.log")]
    terminal.kill(process)
    until(lambda: not any(map(alive, pids)), "the guardian ends the commands")


def test_two_terminals_share_one_job_and_the_then_command_is_started_once(terminal: Terminal) -> None:
    # Each terminal runs one command at a time, and each of the first two commands waits for the other one.
    command = "echo {} >> begun.log; until [ $(wc -l < begun.log) -ge 2 ]; do :; done; echo {} > {out}.o"
    line = ["map", "-j1", "--then", "cat {outs} > all; echo x >> then.log", "--", command, ":::", *numbers(30)]
    one, two = terminal.start(*line), terminal.start(*line)
    said = terminal.end(one)[1] + terminal.end(two)[1]
    assert Counter(terminal.lines("begun.log")) == Counter(numbers(30))
    assert terminal.lines("all") == numbers(30)
    assert terminal.lines("then.log") == ["x"]
    assert len(set(re.findall(r"\(job (\S+)\)", said))) == 1
    ids = {job["task"]: job["id"] for job in terminal.json("jobs")}
    assert sorted(ids) == ["fanin.map", "fanin.map.then"]


def test_output_of_an_attempt_that_lost_its_lease_never_gets_the_final_name(terminal: Terminal) -> None:
    line = ["map", "--", HELD + "echo $FANIN_ATTEMPT > {out}.o", ":::", "x"]
    zombie = terminal.start(*line)
    until(lambda: len(terminal.lines("begun.log")) == 1, "the first attempt runs")
    terminal.freeze(zombie)
    terminal.expire()
    other = terminal.start(*line)
    until(lambda: len(terminal.lines("begun.log")) == 2, "the second terminal has taken over")
    (terminal.folder / "go").touch()
    terminal.end(other)
    assert terminal.lines("x.o") == ["2"]
    os.kill(zombie.pid, signal.SIGCONT)
    terminal.end(zombie)
    assert terminal.lines("x.o") == ["2"]
    assert terminal.scratch() == []


def test_a_crash_between_commit_and_rename_loses_nothing(terminal: Terminal) -> None:
    line = ["map", "--then", "cat {outs} > all", "--"]
    line += ["echo {} >> begun.log; echo {} > {out}.o", ":::", "a"]
    crash = (
        "import os, sys, fanin.cli, fanin.cli.mapping.outputs as outputs\n"
        "outputs.Scratch.promote = lambda self, done: os._exit(9)\n"
        "sys.exit(fanin.cli.main(sys.argv[1:]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", crash, *line], cwd=terminal.folder, env=terminal.environment, capture_output=True,
        stdin=subprocess.DEVNULL, timeout=PATIENCE_SECONDS,
    )  # fmt: skip
    assert done.returncode == 9, done.stderr.decode()
    assert terminal.names() == [".fanin"]
    terminal.expire()
    terminal.run(*line)
    assert terminal.lines("begun.log") == ["a"]
    assert terminal.lines("a.o") == ["a"]
    assert terminal.lines("all") == ["a"]


def test_a_part_that_takes_too_long_is_ended_with_all_that_it_started(terminal: Terminal) -> None:
    command = "sleep 600 & echo $! >> pids.log; echo $$ >> pids.log; trap '' TERM; wait; wait"
    said = terminal.run("map", "--attempts", "1", "--timeout", "300ms", "--", command, ":::", "a", code=1)
    assert b"timed out after 0.3 s" in said.stderr
    pids = [int(pid) for pid in terminal.lines("pids.log")]
    assert len(pids) == 2
    until(lambda: not any(map(alive, pids)), "the whole group is gone")


def test_the_commands_of_a_cancelled_job_are_ended(terminal: Terminal) -> None:
    process = terminal.start("map", "--key", "mine", "--", "echo $$ >> pids.log; exec sleep 600", ":::", "a")
    until(lambda: terminal.lines("pids.log"), "the command runs")
    terminal.run("cancel", "mine", "--reason", "not today")
    _, said = terminal.end(process, code=1)
    assert "not today" in said
    assert not alive(int(terminal.lines("pids.log")[0]))


def test_the_first_interrupt_finishes_what_runs_and_says_how_to_go_on(terminal: Terminal) -> None:
    line = ["map", "-j1", "--", HELD + "echo {} >> done.log", ":::", *numbers(5)]
    process = terminal.start(*line)
    until(lambda: terminal.lines("begun.log"), "the first command runs")
    process.send_signal(signal.SIGINT)
    (terminal.folder / "go").touch()
    _, said = terminal.end(process, code=130)
    done = terminal.lines("done.log")
    assert 1 <= len(done) <= 5
    assert terminal.lines("begun.log") == done, "what had begun was finished"
    assert f"stopped with {len(done)} of 5 parts done; the same command goes on" in said
    terminal.run(*line)
    assert terminal.lines("done.log") == numbers(5)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_second_signal_ends_the_commands_and_costs_no_attempt(terminal: Terminal, number: signal.Signals) -> None:
    line = ["map", "--key", "mine", "--attempts", "1", "--", HELD + "echo {} >> done.log", ":::", "a"]
    process = terminal.start(*line)
    until(lambda: terminal.lines("begun.log"), "the command runs")
    process.send_signal(number)
    assert process.stderr is not None
    assert b"finishing the running commands" in process.stderr.readline()
    process.send_signal(number)
    terminal.end(process, code=130)
    assert terminal.lines("done.log") == []
    (terminal.folder / "go").touch()
    terminal.run(*line)
    assert terminal.lines("done.log") == ["a"]


def test_a_reader_that_goes_away_stops_the_map(terminal: Terminal) -> None:
    command = "echo {}; [ {#} -lt 3 ] || until [ -e go ]; do sleep 0.02; done"
    process = terminal.start("map", "-j1", "--", command, ":::", *numbers(500))
    assert process.stdout is not None
    assert process.stdout.readline() == b"1\n"
    process.stdout.close()
    (terminal.folder / "go").touch()
    assert process.stderr is not None
    said = process.stderr.read().decode()
    assert process.wait(PATIENCE_SECONDS) == 130, said
    assert "the same command goes on" in said
    assert "Traceback" not in said


def test_the_attempts_of_a_command_are_not_used_up_by_crashes(terminal: Terminal) -> None:
    line = ["map", "--attempts", "1", "--", HELD + "true", ":::", "a"]
    for crashes in (1, 2, 3):
        process = terminal.start(*line)
        until(lambda crashes=crashes: len(terminal.lines("begun.log")) == crashes, "the command runs")  # type: ignore[misc]
        terminal.kill(process)
        terminal.expire()
    (terminal.folder / "go").touch()
    terminal.run(*line)
    assert len(terminal.lines("begun.log")) == 4


def test_what_losers_left_is_swept_by_the_next_run(terminal: Terminal) -> None:
    line = ["map", "--", HELD + "echo x > {out}.o", ":::", "a"]
    process = terminal.start(*line)
    until(lambda: terminal.lines("begun.log"), "the command runs")
    terminal.kill(process)
    terminal.expire()
    assert terminal.scratch() != []
    (terminal.folder / "go").touch()
    terminal.run(*line)
    assert terminal.names() == ["a.o", "go"]


def test_an_unreachable_database_is_said_in_one_line(tmp_path: Path) -> None:
    lost = Terminal(tmp_path, "postgresql://nobody@127.0.0.1:9/none")
    said = lost.run("jobs", code=3).stderr.decode()
    assert said.startswith("fanin: cannot reach postgresql://127.0.0.1:9/none")
    assert said.count("\n") == 1
