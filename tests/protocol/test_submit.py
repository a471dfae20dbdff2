"""Create, open, append, seal."""

from __future__ import annotations

import json

import msgspec
import pytest

from fanin.domain import limits
from fanin.domain.errors import KeyConflict, LimitExceeded, NotAllowedNow, UnknownJob
from fanin.domain.model import NewJob
from fanin.domain.policy import Policy
from fanin.protocol import lease, submit
from fanin.protocol.steps import Txn
from fanin.stores.base import Store
from tests.protocol.helpers import (
    THEN,
    Clock,
    append,
    cancel,
    claim,
    claim_all,
    done,
    ending,
    events,
    failed,
    job,
    make,
    make_open,
    new_job,
    part,
    run_all,
    say,
    seal,
    settle,
    snapshot,
    states,
    successors,
    verdicts,
)

MISSING = "00000000-0000-7000-8000-000000000000"


def test_a_job_stands_with_all_of_its_parts_after_one_transaction(store: Store) -> None:
    job_id = make(store, 3, stripes=1, attempts=5, priority=4, meta='{"by": "a test"}')
    row = job(store, job_id)
    assert (row.status, row.outcome, row.run, row.planned_parts, row.sealed_parts) == (
        "running",
        None,
        1,
        3,
        3,
    )
    assert (row.open_stripes, row.priority, row.attempts, row.meta) == (1, 4, 5, '{"by": "a test"}')
    assert states(store, job_id) == ["pending"] * 3
    assert [part(store, job_id, n)["payload"] for n in range(3)] == ["0", "1", "2"]
    assert part(store, job_id, 0)["attempts_allowed"] == 5
    assert events(store, job_id) == []


def test_a_job_without_parts_ends_in_the_transaction_that_creates_it(store: Store) -> None:
    job_id = make(store, 0, then=THEN)
    assert ending(store, job_id) == ("completed", "all_ok")
    (child,) = successors(store, job_id)
    assert job(store, child).status == "running"


def test_a_job_without_parts_cannot_reach_a_quorum(store: Store) -> None:
    job_id = make(store, 0, policy=Policy(quorum=1), then=THEN)
    assert ending(store, job_id) == ("failed", "too_many_failures")
    assert successors(store, job_id) == []


def test_a_part_that_stands_where_a_new_jobs_part_is_to_stand_is_a_bug_and_nothing_is_written(store: Store) -> None:
    job_id = make(store, 3)
    orphan = new_job(store, id="00000000-0000-7000-8000-00000000000a")
    with pytest.raises(Exception, match=r"(?i)unique|duplicate"):
        store.run(lambda: as_second_chunk(orphan, job_id))
    assert states(store, job_id) == ["pending"] * 3
    with pytest.raises(UnknownJob):
        append(store, orphan.id, 0, 1)


def as_second_chunk(new: NewJob, job_id: str) -> Txn[None]:
    """Create ``new`` with a part, and then parts of a job that has some already."""
    yield from submit.create(new, 1, lambda: [["0"]])
    twice = msgspec.structs.replace(new, id=job_id, bucket=new.bucket)
    yield submit.SQL.create_parts(**submit.chunk_of(twice, 0, 2, ["2", "3"]))


@pytest.mark.parametrize("parts", [1, 63, 64, 65, 1000])
def test_neighbouring_parts_share_a_stripe_and_every_part_is_counted_once(store: Store, parts: int) -> None:
    job_id = make(store, parts, stripes=4)
    stripes = say(store, "SELECT stripe, created, remaining FROM fanin.job_stripe ORDER BY stripe")
    assert sum(created for _, created, _ in stripes) == parts
    assert all(created == remaining for _, created, remaining in stripes)
    assert job(store, job_id).open_stripes == sum(1 for _, created, _ in stripes if created)
    rows = say(store, "SELECT idx, stripe FROM fanin.part ORDER BY idx")
    assert rows == [(n, n // limits.STRIPE_RUN_PARTS % 4) for n in range(parts)]


def test_the_same_request_under_one_key_is_one_job(store: Store) -> None:
    wanted = new_job(store, key="album", request_hash="h1")
    chunks = [["1", "2"]]
    assert store.run(lambda: submit.create(wanted, 2, lambda: chunks)) is True
    before = snapshot(store)
    assert store.run(lambda: submit.create(wanted, 2, lambda: chunks)) is False
    assert snapshot(store) == before


def test_the_same_request_after_the_end_is_still_the_same_job(store: Store) -> None:
    wanted = new_job(store, key="album", request_hash="h1")
    store.run(lambda: submit.create(wanted, 1, lambda: [["1"]]))
    run_all(store)
    assert store.run(lambda: submit.create(wanted, 1, lambda: [["1"]])) is False
    assert len(events(store, wanted.id)) == 1


def test_another_content_under_one_key_is_refused_and_names_the_key(store: Store) -> None:
    make(store, 2, key="album", request_hash="h1")
    before = snapshot(store)
    with pytest.raises(KeyConflict, match="'album' was used before with another content"):
        make(store, 2, key="album", request_hash="h2")
    assert snapshot(store) == before


def test_a_job_over_the_width_is_refused_before_anything_is_written(store: Store) -> None:
    wanted = new_job(store)

    def never() -> list[list[str]]:
        raise AssertionError("the parts were asked for")

    with pytest.raises(LimitExceeded, match=rf"10000001 parts .*\({limits.JOB_WIDTH_PARTS}\)"):
        store.run(lambda: submit.create(wanted, limits.JOB_WIDTH_PARTS + 1, never))
    assert say(store, "SELECT count(*) FROM fanin.job") == [(0,)]


def test_a_job_at_the_depth_limit_is_made_and_one_below_it_is_refused(store: Store) -> None:
    make(store, 1, depth=limits.JOB_DEPTH_LEVELS)
    with pytest.raises(LimitExceeded, match=f"depth {limits.JOB_DEPTH_LEVELS + 1} is over the limit"):
        make(store, 1, depth=limits.JOB_DEPTH_LEVELS + 1)
    with pytest.raises(LimitExceeded, match="depth"):
        make_open(store, depth=limits.JOB_DEPTH_LEVELS + 1)
    assert say(store, "SELECT count(*) FROM fanin.job") == [(1,)]


def test_a_creator_that_delivers_another_number_of_parts_than_planned_writes_nothing(store: Store) -> None:
    wanted = new_job(store)
    with pytest.raises(AssertionError, match="planned 3 parts, created 2"):
        store.run(lambda: submit.create(wanted, 3, lambda: [["1", "2"]]))
    assert say(store, "SELECT count(*) FROM fanin.job") == [(0,)]


@pytest.mark.parametrize(
    "value",
    [
        "a\u0000b",
        "\U0001f600 é 中 \u2028",
        'quote " back \\ slash',
        "%s %(x)s :name $1 ?",
        "x" * 1_000_000,
        "",
        "'",
    ],
    ids=["NUL", "emoji", "quotes", "placeholders", "1 MB", "empty", "apostrophe"],
)
def test_a_payload_and_a_result_come_back_byte_by_byte(store: Store, value: str) -> None:
    text = json.dumps(value) if "\u0000" in value else json.dumps(value, ensure_ascii=False)
    job_id = make(store, [text, "null"])
    held = claim(store)
    assert [c.payload for c in held] == [text, "null"]
    settle(store, done(held[0], text), done(held[1], "null"))
    assert [part(store, job_id, n)["result"] for n in (0, 1)] == [text, "null"]
    assert part(store, job_id, 0)["payload"] == text
    assert verdicts(store, done(held[0], text))[0].value == "replay"


def test_a_hundred_thousand_parts_are_one_job(store: Store) -> None:
    job_id = make(store, 100_000, stripes=8)
    assert say(store, "SELECT count(*), min(idx), max(idx), sum(idx) FROM fanin.part") == [
        (100_000, 0, 99_999, 99_999 * 50_000)
    ]
    row = job(store, job_id)
    assert (row.sealed_parts, row.open_stripes) == (100_000, 8)
    assert [c.idx for c in claim(store, 5)] == [0, 1, 2, 3, 4]


def test_a_delayed_part_is_claimed_after_its_delay_and_not_before(store: Store, clock: Clock) -> None:
    make(store, 2, delay=30.0)
    assert store.read(lambda: lease.any_ready(0, "q")) is False
    assert store.run(lambda: lease.wake(0)).queues == []
    assert claim(store) == []
    due = store.read(lambda: lease.look(0)).due_in
    assert due is not None
    assert 25 < due <= 30
    clock.advance(31)
    assert store.run(lambda: lease.wake(0)).queues == ["q"]
    assert len(claim(store)) == 2


def test_parts_can_be_claimed_while_the_job_is_open_but_it_ends_with_the_seal(store: Store) -> None:
    job_id = make_open(store, then=THEN)
    assert append(store, job_id, 0, 2) == 2
    assert [v.value for v in run_all(store)] == ["ok", "ok"]
    assert ending(store, job_id) == ("open", None)
    assert seal(store, job_id, 2) is True
    assert ending(store, job_id) == ("completed", "all_ok")
    assert len(successors(store, job_id)) == 1


def test_an_open_job_sealed_with_live_parts_ends_with_the_last_of_them(store: Store) -> None:
    job_id = make_open(store, stripes=2)
    append(store, job_id, 0, 100)
    held = claim_all(store)
    settle(store, *map(done, held[:64]))
    assert seal(store, job_id, 100) is True
    assert job(store, job_id).open_stripes == 1
    assert [v.value for v in verdicts(store, *map(done, held[64:]))] == ["last"] * 36
    assert ending(store, job_id) == ("completed", "all_ok")


def test_an_open_job_sealed_without_parts_ends_with_the_seal(store: Store) -> None:
    job_id = make_open(store)
    assert seal(store, job_id, 0) is True
    assert ending(store, job_id) == ("completed", "all_ok")


def test_an_append_that_is_said_again_adds_only_what_is_missing(store: Store) -> None:
    job_id = make_open(store, stripes=2)
    assert append(store, job_id, 0, 70) == 70
    assert append(store, job_id, 0, 70) == 0
    assert append(store, job_id, 60, 20) == 10
    assert seal(store, job_id, 80) is True
    assert say(store, "SELECT created, remaining FROM fanin.job_stripe ORDER BY stripe") == [
        (64, 64),
        (16, 16),
    ]


def test_a_part_that_is_appended_again_with_another_payload_is_a_conflict_and_keeps_its_first(store: Store) -> None:
    job_id = make_open(store, key="stream")
    store.run(lambda: submit.append(0, job_id, 0, ["1", "2"]))
    before = snapshot(store)
    with pytest.raises(KeyConflict, match="part 1 of the open job stream stands with another payload"):
        store.run(lambda: submit.append(0, job_id, 1, ["3", "4"]))
    assert snapshot(store) == before
    assert store.run(lambda: submit.append(0, job_id, 1, ["2", "3"])) == 1


def test_a_seal_with_another_count_is_refused_with_both_numbers(store: Store) -> None:
    job_id = make_open(store)
    append(store, job_id, 0, 3)
    with pytest.raises(NotAllowedNow, match="planned 4 parts, but 3 were created"):
        seal(store, job_id, 4)
    assert job(store, job_id).status == "open"
    assert seal(store, job_id, 3) is True


def test_a_seal_that_is_said_again_changes_nothing(store: Store) -> None:
    job_id = make_open(store)
    append(store, job_id, 0, 1)
    assert seal(store, job_id, 1, "h1") is True
    before = snapshot(store)
    assert seal(store, job_id, 1, "h1") is False
    assert snapshot(store) == before


def test_a_sealed_job_is_compared_with_the_content_of_a_second_seal(store: Store) -> None:
    job_id = make_open(store, key="stream")
    append(store, job_id, 0, 1)
    seal(store, job_id, 1, "h1")
    with pytest.raises(KeyConflict):
        seal(store, job_id, 1, "h2")


def test_nothing_is_appended_to_a_sealed_an_ended_or_an_unknown_job(store: Store) -> None:
    job_id = make_open(store)
    append(store, job_id, 0, 1)
    seal(store, job_id, 1)
    with pytest.raises(NotAllowedNow, match="is running: parts can be added to an open job only"):
        append(store, job_id, 1, 1)
    run_all(store)
    with pytest.raises(NotAllowedNow, match="is completed"):
        append(store, job_id, 1, 1)
    with pytest.raises(UnknownJob, match=MISSING):
        append(store, MISSING, 0, 1)
    with pytest.raises(UnknownJob, match=MISSING):
        seal(store, MISSING, 0)


def test_an_append_past_the_width_is_refused(store: Store) -> None:
    job_id = make_open(store)
    with pytest.raises(LimitExceeded, match=f"more than {limits.JOB_WIDTH_PARTS} parts"):
        append(store, job_id, limits.JOB_WIDTH_PARTS - 1, 2)
    assert states(store, job_id) == []


def test_a_job_closed_while_open_takes_no_part_and_no_seal(store: Store) -> None:
    job_id = make_open(store)
    append(store, job_id, 0, 2)
    assert cancel(store, job_id) is True
    assert ending(store, job_id) == ("cancelled", "cancelled")
    with pytest.raises(NotAllowedNow, match="is cancelled"):
        append(store, job_id, 2, 1)
    assert seal(store, job_id, 2) is False


def test_opening_again_under_the_key_finds_the_open_job(store: Store) -> None:
    wanted = new_job(store, key="stream", give_up_after=60.0)
    assert store.run(lambda: submit.open_job(wanted)) is True
    assert store.run(lambda: submit.open_job(wanted)) is False
    assert append(store, wanted.id, 0, 1) == 1


def test_a_policy_may_close_a_job_that_is_still_open(store: Store) -> None:
    job_id = make_open(store, policy=Policy(fail_fast=True))
    append(store, job_id, 0, 3)
    first, *_ = claim(store)
    assert [v.value for v in verdicts(store, failed(first))] == ["last"]
    assert ending(store, job_id) == ("failed", "too_many_failures")


def test_the_deadline_of_an_open_job_ends_with_the_seal_unless_it_is_kept(store: Store) -> None:
    dropped, kept = make_open(store), make_open(store)
    append(store, dropped, 0, 1)
    append(store, kept, 0, 1)
    seal(store, dropped, 1)
    store.run(lambda: submit.seal(0, kept, 1, None, True))
    assert job(store, dropped).give_up_at is None
    assert job(store, kept).give_up_at is not None


def test_payloads_are_cut_into_chunks_that_one_insert_can_carry() -> None:
    chunks = list(submit.in_chunks(str(n) for n in range(2 * limits.CHUNK_PARTS + 1)))
    assert [len(chunk) for chunk in chunks] == [limits.CHUNK_PARTS, limits.CHUNK_PARTS, 1]
    assert list(submit.in_chunks([])) == []
