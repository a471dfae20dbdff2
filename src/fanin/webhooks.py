"""For the receiver of webhooks: check that one was sent by somebody who has the secret, and lately."""

from __future__ import annotations

import time
from collections.abc import Mapping

from fanin.domain import signing
from fanin.domain.durations import Duration, seconds
from fanin.domain.signing import BadSignature


def verify(secrets: str, headers: Mapping[str, str], body: bytes, tolerance: Duration = 300.0) -> str:
    """The event key of a webhook, by which the receiver knows a repeated delivery.

    secrets: ``whsec_…``, or several with spaces between. body: the bytes as they came, before any parsing.
    tolerance: how far the time of the signature may be from now. Raises `BadSignature`, or `BadOption` for a secret
    that is none.
    """
    return signing.verify(secrets, headers, body, time.time(), seconds(tolerance, "tolerance"))


__all__ = ["BadSignature", "verify"]
