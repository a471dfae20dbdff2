"""Webhooks: signed so that any Standard Webhooks library accepts them, careful where they go, patient where asked."""

from __future__ import annotations

import base64
import socket
import threading
import time
from collections.abc import Iterator

import pytest
import standardwebhooks

from fanin import webhooks
from fanin.domain import signing
from fanin.domain.errors import BadOption
from fanin.domain.events import structured
from fanin.runtime.relay import Relay
from fanin.runtime.sinks import open_sink
from fanin.runtime.sinks.base import ACKED, Answer
from fanin.stores import open_store
from tests.relay.receipts import ends, event, judge
from tests.relay.receiver import WebhookReceiver

OLD = "whsec_" + base64.b64encode(b"o" * 32).decode()
NEW = "whsec_" + base64.b64encode(b"n" * 32).decode()
HERE = "fanin_private=yes"


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FANIN_WEBHOOK_SECRET", OLD)


@pytest.fixture
def receiver() -> Iterator[WebhookReceiver]:
    made = WebhookReceiver()
    yield made
    made.close()


def send(url: str, *numbers: int) -> list[Answer]:
    sink = open_sink(url)
    try:
        return sink.send([event(n) for n in numbers or (1,)])
    finally:
        sink.close()


def test_every_event_is_posted_once_with_its_key_as_the_id(receiver: WebhookReceiver, sqlite_url: str) -> None:
    store = open_store(sqlite_url)
    expected = ends(store, 30)
    sink = open_sink(f"{receiver.url}/hook?{HERE}&mine=1")
    Relay(store, sink).run(until_idle=True)
    sink.close()
    store.close()
    assert judge(expected, [(headers["webhook-id"], body) for headers, body in receiver.received]) == 0
    assert {headers[":path"] for headers, _ in receiver.received} == {"/hook?mine=1"}
    assert {headers["content-type"] for headers, _ in receiver.received} == {"application/cloudevents+json"}
    assert receiver.connections <= sink.batch


def test_the_signature_is_accepted_by_the_standard_library_and_by_ours(receiver: WebhookReceiver) -> None:
    assert send(f"{receiver.url}?{HERE}") == [ACKED]
    ((headers, body),) = receiver.received
    assert standardwebhooks.Webhook(OLD).verify(body, headers)["id"] == event(1).key
    assert webhooks.verify(OLD, headers, body) == event(1).key
    assert webhooks.verify(f"{NEW} {OLD}", headers, body) == event(1).key


@pytest.mark.parametrize("secret", [OLD, NEW])
def test_while_secrets_are_rotated_a_receiver_may_know_either(
    receiver: WebhookReceiver, monkeypatch: pytest.MonkeyPatch, secret: str
) -> None:
    monkeypatch.setenv("FANIN_WEBHOOK_SECRET", f"{NEW} {OLD}")
    send(f"{receiver.url}?{HERE}")
    ((headers, body),) = receiver.received
    assert webhooks.verify(secret, headers, body) == event(1).key
    standardwebhooks.Webhook(secret).verify(body, headers)


def test_what_is_not_signed_so_is_refused() -> None:
    now = time.time()
    good = signing.sign(signing.parse_secrets(OLD), "job/x/finished/1", int(now), b"{}")
    assert signing.verify(OLD, good, b"{}", now) == "job/x/finished/1"
    for headers, body, moment, said in (
        (good, b"{} ", now, "no signature fits"),
        ({**good, "webhook-id": "job/y/finished/1"}, b"{}", now, "no signature fits"),
        ({**good, "webhook-signature": ""}, b"{}", now, "no signature fits"),
        (
            {**good, "webhook-signature": good["webhook-signature"].replace("v1,", "v2,")},
            b"{}",
            now,
            "no signature fits",
        ),
        (good, b"{}", now + 302, "s away"),
        (good, b"{}", now - 302, "s away"),
        ({**good, "webhook-timestamp": "soon"}, b"{}", now, "are missing"),
        ({}, b"{}", now, "are missing"),
    ):
        with pytest.raises(signing.BadSignature, match=said):
            signing.verify(OLD, headers, body, moment)
    with pytest.raises(signing.BadSignature, match="no signature fits"):
        signing.verify(NEW, good, b"{}", now)


@pytest.mark.parametrize("text", ["whsec_short", "whsec_" + base64.b64encode(b"x" * 23).decode(), f"{OLD} nonsense!"])
def test_a_secret_that_is_none_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FANIN_WEBHOOK_SECRET", text)
    with pytest.raises(BadOption, match="24 to 64 random bytes"):
        open_sink("https://example.com/")


def test_without_a_secret_it_must_be_said_that_none_is_wanted(
    receiver: WebhookReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FANIN_WEBHOOK_SECRET", "")
    with pytest.raises(BadOption, match="FANIN_WEBHOOK_SECRET"):
        open_sink(receiver.url)
    assert send(f"{receiver.url}?{HERE}&fanin_unsigned=yes") == [ACKED]
    assert "webhook-signature" not in receiver.received[0][0]


def test_the_binary_form_has_the_attributes_as_headers(receiver: WebhookReceiver) -> None:
    send(f"{receiver.url}?{HERE}&fanin_format=binary")
    ((headers, body),) = receiver.received
    assert body == event(1).payload.encode()
    assert (headers["ce-id"], headers["ce-specversion"], headers["content-type"]) == (
        event(1).key, "1.0", "application/json",
    )  # fmt: skip
    assert webhooks.verify(OLD, headers, body) == event(1).key


@pytest.mark.parametrize(
    ("status", "headers", "verb", "after"),
    [
        (200, {}, "acked", None),
        (202, {}, "acked", None),
        (400, {}, "refused", None),
        (404, {}, "refused", None),
        (410, {}, "hopeless", None),
        (429, {"retry-after": "17"}, "unsent", 17.0),
        (503, {"retry-after": "5"}, "unsent", 5.0),
        (503, {}, "unsent", None),
        (502, {}, "unsent", None),
        (500, {}, "refused", None),
        (500, {"retry-after": "3"}, "refused", 3.0),
        (429, {"retry-after": "nonsense"}, "unsent", None),
        (429, {"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, "unsent", 0.0),
    ],
)
def test_the_status_says_what_became_of_the_event(
    receiver: WebhookReceiver, status: int, headers: dict[str, str], verb: str, after: float | None
) -> None:
    receiver.reply = lambda *_: (status, headers)
    (answer,) = send(f"{receiver.url}?{HERE}")
    assert (answer.verb, answer.after) == (verb, after)
    assert answer.verb == "acked" or str(status) in answer.error


PRIVATE = (
    "127.0.0.1", "10.1.2.3", "192.168.0.1", "169.254.169.254", "100.64.0.1", "::1", "::ffff:10.0.0.1", "fd00::1",
    "224.0.0.1", "0.0.0.0",
)  # fmt: skip


@pytest.mark.parametrize("address", PRIVATE)
def test_a_private_address_is_not_called(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """Also one that a public name means, and also if only one of its addresses is."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    public = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("93.184.216.34", 443))
    private = (family, socket.SOCK_STREAM, 6, "", (address, 443))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [public, private])
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: pytest.fail("it was called"))
    (answer,) = send("https://hooks.example.com/")
    assert answer.verb == "refused"
    assert f"hooks.example.com is {address}, which is no public address" in answer.error


def test_the_address_that_was_looked_at_is_the_one_that_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that means another address a moment later leads nowhere else."""
    called = []

    def connect(address: tuple[str, int], *_: object) -> socket.socket:
        called.append(address)
        raise ConnectionRefusedError

    found = [[(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("93.184.216.34", 80))], []]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found.pop(0))
    monkeypatch.setattr(socket, "create_connection", connect)
    (answer,) = send("http://hooks.example.com/")
    assert (answer.verb, called) == ("unsent", [("93.184.216.34", 80)])


def test_a_redirect_is_followed_only_as_often_as_allowed(receiver: WebhookReceiver) -> None:
    receiver.reply = lambda headers, _: (204, {}) if headers[":path"] == "/b" else (307, {"location": "/b"})
    (answer,) = send(f"{receiver.url}/a?{HERE}")
    assert (answer.verb, "allowed are 0 redirects" in answer.error) == ("refused", True)
    assert send(f"{receiver.url}/a?{HERE}&fanin_redirects=1") == [ACKED]
    assert receiver.received[-1][1] == structured(event(1))
    receiver.reply = lambda *_: (308, {"location": "/a"})
    (answer,) = send(f"{receiver.url}/a?{HERE}&fanin_redirects=3")
    assert "allowed are 3 redirects" in answer.error


@pytest.mark.parametrize(
    ("status", "location", "said"), [(302, "/b", "keep a POST a POST"), (307, "ftp://h/", "from http to ftp")]
)
def test_a_redirect_that_changes_the_request_is_not_followed(
    receiver: WebhookReceiver, status: int, location: str, said: str
) -> None:
    receiver.reply = lambda *_: (status, {"location": location})
    (answer,) = send(f"{receiver.url}?{HERE}&fanin_redirects=3")
    assert (answer.verb, said in answer.error) == ("refused", True)


def test_a_receiver_that_does_not_answer_is_left_after_the_time_out(receiver: WebhookReceiver) -> None:
    go = threading.Event()
    receiver.reply = lambda *_: (204, {}) if go.wait(60) else None
    (answer,) = send(f"{receiver.url}?{HERE}&fanin_timeout=0.3s")
    go.set()
    assert (answer.verb, "no answer within 0.3 s" in answer.error) == ("refused", True)


def test_an_answer_that_drips_is_left_after_the_time_out_too() -> None:
    """Each byte comes in time, the whole never does."""
    listener = socket.create_server(("127.0.0.1", 0))
    done = threading.Event()

    def drip() -> None:
        connection, _ = listener.accept()
        with connection:
            while not done.wait(0.02):
                try:
                    connection.sendall(b"H")
                except OSError:
                    return

    thread = threading.Thread(target=drip, daemon=True)
    thread.start()
    (answer,) = send(f"http://127.0.0.1:{listener.getsockname()[1]}?{HERE}&fanin_timeout=2s")
    done.set()
    thread.join(10)
    listener.close()
    assert (answer.verb, "too slowly" in answer.error) == ("refused", True)


def test_a_connection_that_the_receiver_has_closed_meanwhile_is_made_anew(receiver: WebhookReceiver) -> None:
    sink = open_sink(f"{receiver.url}?{HERE}")
    receiver.reply = lambda *_: (204, {"connection": "keep-alive"})
    assert sink.send([event(1)]) == [ACKED]
    cut = iter([True])
    receiver.reply = lambda *_: None if next(cut, False) else (204, {})
    answers = sink.send([event(n) for n in range(2, 10)])
    sink.close()
    assert sum(answer.verb == "unsent" for answer in answers) <= 1
    assert judge([event(n).key for n in range(1, 10)], [(h["webhook-id"], body) for h, body in receiver.received]) <= 1


def test_a_receiver_that_is_not_there_is_away() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    (answer,) = send(f"http://127.0.0.1:{port}?{HERE}")
    assert answer.verb == "unsent"


def test_https_is_spoken_to_the_name_and_its_certificate_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        said: list[bytes] = []

        def hello() -> None:
            connection, _ = listener.accept()
            with connection:
                said.append(connection.recv(4096))

        thread = threading.Thread(target=hello, daemon=True)
        thread.start()
        (answer,) = send(f"https://localhost:{port}?{HERE}&fanin_timeout=5s")
        thread.join(10)
    assert answer.verb == "unsent"
    assert b"localhost" in said[0]
