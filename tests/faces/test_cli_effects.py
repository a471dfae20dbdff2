"""``fanin effects``, as a person uses it when a receiver has lost an answer."""

from __future__ import annotations

import runpy
from typing import Any

import pytest

from tests.faces.terminal import Terminal

MODULE = """
import fanin

app = fanin.App()

class LostAnswer(Exception):
    pass

@app.task(name="order")
def order(kind: str) -> None:
    fanin.current().effect("mail", {"to": kind})

@app.effect("mail", mode="at_most_once")
def mail(request: dict[str, str], key: str) -> str:
    with open("calls", "a") as file:
        print(key, file=file)
    if open("mood").read() == "well":
        return "sent " + request["to"]
    if request["to"] == "lost":
        raise LostAnswer("no answer")
    if request["to"] == "refused":
        raise fanin.Permanent("no such address")
    return "sent"
"""


@pytest.fixture
def shop(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> tuple[Terminal, str]:
    (terminal.folder / "shop.py").write_text(MODULE)
    (terminal.folder / "mood").write_text("bad")
    monkeypatch.chdir(terminal.folder)
    monkeypatch.setenv("FANIN_URL", terminal.url)
    opened = runpy.run_path("shop.py")
    with opened["app"] as app:
        job = app.map(opened["order"], ["sent", "lost", "refused"])
        app.run_worker(until_idle=True)
    return terminal, job.id


def listed(terminal: Terminal, *more: str) -> dict[str, Any]:
    return {row["request"]["to"]: row for row in terminal.json("effects", *more)}


def test_the_list_shows_what_became_of_each_and_what_a_person_has_to_do(shop: tuple[Terminal, str]) -> None:
    terminal, job_id = shop
    rows = listed(terminal)
    assert {to: (row["status"], row["calls"], row["response"]) for to, row in rows.items()} == {
        "sent": ("done", 1, "sent"), "lost": ("unknown", 1, None), "refused": ("failed", 1, None),
    }  # fmt: skip
    assert rows["lost"]["key"] == f"{job_id}/1/mail"
    assert listed(terminal, job_id) == rows
    assert list(listed(terminal, "--status", "unknown")) == ["lost"]
    assert list(listed(terminal, job_id[:20], "--status", "failed")) == ["refused"]
    shown = terminal.run("effects")
    assert f"{job_id}/1/mail".encode() in shown.stdout.replace(b"\n", b"")
    assert b"1 unknown, the oldest for" in shown.stderr
    assert b"no cancelled effects" in terminal.run("effects", "--status", "cancelled").stdout


def test_a_person_settles_what_nobody_knows_and_has_the_refused_called_again(shop: tuple[Terminal, str]) -> None:
    terminal, job_id = shop
    key = f"{job_id}/1/mail"
    assert b"must be settled before" in terminal.run("effects", "retry", key).stderr
    done = terminal.run("effects", "settle", key, "--done", "--response", '"seen in the log"', "--note", "asked them")
    assert f"effect {key} is done".encode() in done.stderr
    assert terminal.json("effects", "settle", key, "--done") == {"key": key, "status": "done"}
    row = listed(terminal)["lost"]
    assert (row["status"], row["response"], row["note"]) == ("done", "seen in the log", "asked them")
    (terminal.folder / "mood").write_text("well")
    assert terminal.json("effects", "retry") == {"retried": 1}
    assert b"nothing to retry: no effect has failed" in terminal.run("effects", "retry").stderr
    terminal.run("work", "shop:app", "--until-idle")
    assert listed(terminal)["refused"]["response"] == "sent refused"
    calls = (terminal.folder / "calls").read_text().split()
    assert sorted(calls) == sorted([f"{job_id}/{n}/mail" for n in (0, 1, 2, 2)])


def test_what_has_not_happened_is_called_once_more_if_a_person_says_so(shop: tuple[Terminal, str]) -> None:
    terminal, job_id = shop
    key = f"{job_id}/1/mail"
    terminal.run("effects", "settle", key, "--failed", "--note", "nothing has arrived")
    assert b"1 effects will be called again" in terminal.run("effects", "retry", key).stderr
    (terminal.folder / "mood").write_text("well")
    terminal.run("work", "shop:app", "--until-idle")
    assert listed(terminal)["lost"]["response"] == "sent lost"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["settle", "--done"], "give the key of one effect"),
        (["settle", "x/0/mail", "--done"], "'x/0/mail' is no key of an effect"),
        (["settle", "KEY"], "say --done (it has happened) or --failed"),
        (["settle", "KEY", "--done", "--failed"], "say --done (it has happened) or --failed"),
        (["settle", "KEY", "--failed", "--response", "1"], "--response goes with --done"),
        (["settle", "KEY", "--done", "--response", "sent"], "--response 'sent' is no JSON"),
        (["settle", "KEY", "--done", "--note", "n" * 1001], "--note has 1001 characters"),
        (["settle", "OTHER", "--done"], "there is no effect"),
        (["settle", "DONE", "--failed"], "is done, it cannot become failed"),
        (["--done"], "go with settle"),
        (["--status", "lost"], "--status 'lost': there are"),
        (["--limit", "0"], "--limit 0: give 1 to 10000"),
        (["retry", "nonsense"], "'nonsense' is no key of an effect"),
        (["nojob"], "there is no job 'nojob'"),
        (["nojob", "more"], "'more': give one job at most"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_next_step(
    shop: tuple[Terminal, str], words: list[str], said: str
) -> None:
    terminal, job_id = shop
    keys = {"KEY": f"{job_id}/1/mail", "OTHER": f"{job_id}/1/fax", "DONE": f"{job_id}/0/mail"}
    before = terminal.json("effects")
    refused = terminal.run("effects", *(keys.get(word, word) for word in words), code=2)
    assert said in " ".join(refused.stderr.decode().split())
    assert terminal.json("effects") == before
