"""Signatures of webhooks as Standard Webhooks describes them: HMAC-SHA256 over id, time and body."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping, Sequence

from fanin.domain.errors import BadOption, Refused

PREFIX = "whsec_"
TOLERANCE_SECONDS = 300.0
SECRET_BYTES = (24, 64)


class BadSignature(Refused):
    """A webhook that was not signed with any of the secrets, or not lately."""


def parse_secrets(text: str) -> list[bytes]:
    """``whsec_BASE64``, or several with spaces between while they are rotated: all sign, any verifies.

    Raises `BadOption`.
    """
    found = []
    for word in text.split():
        try:
            secret = base64.b64decode(word.removeprefix(PREFIX), validate=True)
        except binascii.Error:
            secret = b""
        if not SECRET_BYTES[0] <= len(secret) <= SECRET_BYTES[1]:
            raise BadOption(
                f"a webhook secret must be {PREFIX} and {SECRET_BYTES[0]} to {SECRET_BYTES[1]} random bytes in base64: "
                "echo whsec_$(head -c 32 /dev/urandom | base64)"
            )
        found.append(secret)
    return found


def sign(secrets: Sequence[bytes], event_key: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The three headers of a signed webhook."""
    signatures = " ".join("v1," + _digest(secret, event_key, timestamp, body) for secret in secrets)
    return {"webhook-id": event_key, "webhook-timestamp": str(timestamp), "webhook-signature": signatures}


def verify(
    secrets: str, headers: Mapping[str, str], body: bytes, now: float, tolerance: float = TOLERANCE_SECONDS
) -> str:
    """The event key of a webhook that is signed with one of ``secrets`` and not older than ``tolerance`` seconds.

    Raises `BadSignature`. ``body`` is the bytes as they came.
    """
    given = {name.lower(): value for name, value in headers.items()}
    try:
        event_key, signatures = given["webhook-id"], given["webhook-signature"]
        timestamp = int(given["webhook-timestamp"])
    except (KeyError, ValueError):
        raise BadSignature("the headers webhook-id, webhook-timestamp and webhook-signature are missing") from None
    if abs(now - timestamp) > tolerance:
        raise BadSignature(f"signed {abs(now - timestamp):.0f} s away from now, allowed are {tolerance:.0f} s")
    wanted = [_digest(secret, event_key, timestamp, body) for secret in parse_secrets(secrets)]
    for word in signatures.split():
        version, _, signature = word.partition(",")
        if version == "v1" and any(hmac.compare_digest(signature.encode(), w.encode()) for w in wanted):
            return event_key
    raise BadSignature("no signature fits: another secret, or another body")


def _digest(secret: bytes, event_key: str, timestamp: int, body: bytes) -> str:
    return base64.b64encode(
        hmac.new(secret, f"{event_key}.{timestamp}.".encode() + body, hashlib.sha256).digest()
    ).decode()
