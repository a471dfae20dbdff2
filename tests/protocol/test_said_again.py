"""What a person does is said again by the store when its answer is lost. Whatever has happened since, it is answered as
it was, and nothing is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fanin.domain.policy import Policy
from fanin.protocol import close, deeds, flow, pause, redrive, skip
from fanin.protocol.steps import TxnFactory
from fanin.stores.base import Store
from tests.protocol.flows import again, cancel_left, end, fail, resolve, start
from tests.protocol.helpers import claim, done, failed, make, say, settle, sweep_all

Case = Callable[[Store], tuple[TxnFactory[Any], Callable[[], object]]]
"""The deed, and what happens before it is said again."""

CASES: list[Any] = []


def case(name: str) -> Callable[[Case], Case]:
    def register(made: Case) -> Case:
        CASES.append(pytest.param(made, id=name))
        return made

    return register


def run_again(store: Store, job_id: str) -> None:
    sweep_all(store)
    assert store.run(lambda: redrive.redrive(0, job_id, 1, 3)) == 2


@case("a cancel, and the job is run again")
def cancels(store: Store) -> Any:
    job_id, deed = make(store, 1), deeds.deed("kim")
    return lambda: close.cancel(0, job_id, deed), lambda: run_again(store, job_id)


@case("a finish, and the job is run again")
def finishes(store: Store) -> Any:
    job_id, deed = make(store, 2), deeds.deed("kim")
    settle(store, done(claim(store, 1)[0]))
    return lambda: close.finish_now(0, job_id, deed), lambda: run_again(store, job_id)


@case("a skip that ends the job, and it is run again")
def skips(store: Store) -> Any:
    job_id, deed = make(store, 1), deeds.deed("kim")
    return lambda: skip.skip(0, job_id, 0, None, deed), lambda: run_again(store, job_id)


@case("a skip, and the part is run again")
def skips_one_of_two(store: Store) -> Any:
    job_id, deed = make(store, 2), deeds.deed("kim")

    def end_and_again() -> None:
        settle(store, failed(claim(store)[0]))
        run_again(store, job_id)
        assert len(claim(store)) == 2

    return lambda: skip.skip(0, job_id, 0, None, deed), end_and_again


@case("a skip as a success, and the job is cancelled")
def skips_done(store: Store) -> Any:
    job_id, deed = make(store, 2), deeds.deed("kim")
    return lambda: skip.skip(0, job_id, 0, "1", deed), lambda: store.run(lambda: close.cancel(0, job_id))


@case("a skip that closes the job early")
def skips_quorum(store: Store) -> Any:
    job_id, deed = make(store, 3, policy=Policy(quorum=1)), deeds.deed("kim")
    return lambda: skip.skip(0, job_id, 1, "1", deed), lambda: sweep_all(store)


@case("a pause, and the job goes on")
def pauses(store: Store) -> Any:
    job_id, deed = make(store, 1), deeds.deed("kim")
    return lambda: pause.pause(0, job_id, deed), lambda: store.run(lambda: pause.resume(0, job_id, deeds.deed()))


@case("a pause, and the job is cancelled")
def pauses_ended(store: Store) -> Any:
    job_id, deed = make(store, 1), deeds.deed("kim")
    return lambda: pause.pause(0, job_id, deed), lambda: store.run(lambda: close.cancel(0, job_id))


@case("a resume, and the job is paused again")
def resumes(store: Store) -> Any:
    job_id, deed = make(store, 1), deeds.deed("kim")
    store.run(lambda: pause.pause(0, job_id, deeds.deed()))
    return lambda: pause.resume(0, job_id, deed), lambda: store.run(lambda: pause.pause(0, job_id, deeds.deed()))


@case("a redrive, and the run is over")
def redrives(store: Store) -> Any:
    job_id, deed = make(store, 1), deeds.deed("kim")
    store.run(lambda: close.cancel(0, job_id))
    sweep_all(store)
    return (
        lambda: redrive.redrive(0, job_id, 1, 3, done=deed),
        lambda: store.run(lambda: close.cancel(0, job_id)),
    )


@case("the cancel of a flow, and it is run again")
def cancels_flow(store: Store) -> Any:
    flow_id, deed = start(store, {"a": "", "b": "a"}), deeds.deed("kim")

    def end_and_again() -> None:
        cancel_left(store)
        assert again(store, flow_id) == 2

    return lambda: flow.cancel(0, flow_id, deed), end_and_again


def left(store: Store) -> str:
    """What undoes b has failed."""
    flow_id = start(store, {"a": "", "b": "a", "c": "b"}, undo=["a", "b"])
    end(store, flow_id, "a")
    end(store, flow_id, "b")
    fail(store, flow_id, "c")
    fail(store, flow_id, "b", undo=True)
    return flow_id


@case("a step resolved, and the next one waits for a person")
def resolves(store: Store) -> Any:
    flow_id, deed = left(store), deeds.deed("kim")
    return (
        lambda: flow.resolve(0, flow_id, "b", "undone", deed),
        lambda: fail(store, flow_id, "a", undo=True),
    )


@case("an undo that is run again, and fails again")
def undoes_again(store: Store) -> Any:
    flow_id, deed = left(store), deeds.deed("kim")
    return lambda: flow.undo_again(0, flow_id, "b", deed), lambda: fail(store, flow_id, "b", undo=True)


@case("an undo that is run again, and resolved after that")
def undoes_and_is_resolved(store: Store) -> Any:
    flow_id, deed = left(store), deeds.deed("kim")

    def fail_and_resolve() -> None:
        fail(store, flow_id, "b", undo=True)
        resolve(store, flow_id, "b")

    return lambda: flow.undo_again(0, flow_id, "b", deed), fail_and_resolve


def everything(store: Store) -> dict[str, list[Any]]:
    tables = ("job", "job_stripe", "part", "attempt_log", "job_log", "outbox", "flow", "flow_step")
    return {table: sorted(say(store, f"SELECT * FROM fanin.{table}"), key=repr) for table in tables}


@pytest.mark.parametrize("case", CASES)
def test_what_a_person_has_done_is_not_done_again_when_the_answer_was_lost(store: Store, case: Case) -> None:
    deed, meanwhile = case(store)
    answer = store.run(deed)
    meanwhile()
    before = everything(store)
    assert store.run(deed) == answer
    assert everything(store) == before


@pytest.mark.parametrize("case", CASES)
def test_what_a_person_has_done_is_written_down_once(store: Store, case: Case) -> None:
    deed, _ = case(store)
    store.run(deed)
    once = say(store, "SELECT job_id, id FROM fanin.job_log")
    store.run(deed)
    assert len(say(store, "SELECT job_id, id FROM fanin.job_log")) == len(once)
