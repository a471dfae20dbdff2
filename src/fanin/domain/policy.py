"""Join policies: pure functions over counts. They say when a job ends early, and how an ended job is called."""

from __future__ import annotations

import math
import random
from typing import NamedTuple

import msgspec

from fanin.domain import limits
from fanin.domain.durations import Duration, seconds
from fanin.domain.errors import BadOption, shown


class Policy(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the parts' outcomes become the job's.

    The default: all parts must succeed; a failure is judged when every part has ended. ``tolerate`` (a count) and
    ``tolerate_percent`` allow that many failures. ``fail_fast`` closes the job as soon as more have failed than
    tolerated; a percentage is judged against the parts that have ended once ``sample`` of them have, else against
    all that there are or may come. ``quorum`` closes the job as a success once that many parts have succeeded.
    ``give_up`` says what a passed ``give_up_at`` means: ``proceed`` with what arrived, or ``abandon``.
    """

    tolerate: int = 0
    tolerate_percent: float | None = None
    sample: int | None = None
    fail_fast: bool = False
    quorum: int | None = None
    give_up: str = "abandon"

    @property
    def judges_failures(self) -> bool:
        """Whether a failure may close the job early."""
        return self.fail_fast or self.quorum is not None

    @property
    def judges_successes(self) -> bool:
        return self.quorum is not None


class Counts(NamedTuple):
    """The sums over a job's stripes, read under all of their locks. ``sealed``: none can come from outside."""

    created: int
    remaining: int
    succeeded: int
    failed: int
    sealed: bool

    @property
    def abandoned(self) -> int:
        """Parts that an earlier run left behind and that this run has not taken up again."""
        return self.created - self.remaining - self.succeeded - self.failed


class Ending(NamedTuple):
    """How a run ends: the job's status, its outcome, a reason for people, and whether its successor is due.

    ``skipped``: a step of a flow that it runs counts as skipped, not as failed.
    """

    status: str
    outcome: str
    reason: str | None
    proceeds: bool
    skipped: bool = False


def decode(text: str) -> Policy:
    return msgspec.json.decode(text, type=Policy)


def tolerated(policy: Policy, total: int) -> float:
    """How many failures of ``total`` parts are still a success."""
    if policy.tolerate_percent is not None:
        # Rounded, because 32.3 % of 1 000 is 322.99999999999994 in floating point.
        return round(total * policy.tolerate_percent / 100.0, 6)
    return float(policy.tolerate)


def close_early(policy: Policy, counts: Counts, width: int | None = None) -> Ending | None:
    """The ending that the counts already decide while parts are still live, or None.

    ``width``: the most parts of a job that grows. Live parts may add others, so what is judged against all parts is
    judged against so many.
    """
    most = counts.created if width is None else width
    if policy.quorum is not None:
        if counts.succeeded >= policy.quorum:
            return Ending("completed", "partial", f"quorum of {policy.quorum} reached", True)
        if counts.sealed and counts.succeeded + counts.remaining + most - counts.created < policy.quorum:
            reason = f"quorum of {policy.quorum} cannot be reached: {counts.failed} of {counts.created} parts failed"
            return Ending("failed", "too_many_failures", reason, False)
        return None
    if not policy.fail_fast or counts.failed == 0:
        return None
    if policy.tolerate_percent is None:
        return _too_many(policy, counts) if counts.failed > policy.tolerate else None
    ended = counts.succeeded + counts.failed
    if policy.sample is not None and ended >= policy.sample and counts.failed > tolerated(policy, ended):
        return _too_many(policy, counts)
    if counts.sealed and counts.failed > tolerated(policy, most):
        return _too_many(policy, counts)
    return None


def natural_end(policy: Policy, counts: Counts) -> Ending:
    """The ending of a job whose last part has just ended. A part that stays abandoned is no success either."""
    missing = counts.failed + counts.abandoned
    if policy.quorum is not None:
        if counts.succeeded >= policy.quorum:
            return Ending("completed", "all_ok" if missing == 0 else "with_failures", None, True)
        reason = f"quorum of {policy.quorum} not reached: {counts.succeeded} of {counts.created} parts succeeded"
        return Ending("failed", "too_many_failures", reason, False)
    if missing == 0:
        return Ending("completed", "all_ok", None, True)
    if missing <= tolerated(policy, counts.created):
        return Ending("completed", "with_failures", None, True)
    return _too_many(policy, counts)


def gave_up(policy: Policy) -> Ending:
    """The ending of a job whose ``give_up_at`` has passed."""
    if policy.give_up == "proceed":
        return Ending("completed", "partial", "the deadline passed; went on with what had arrived", True)
    return Ending("failed", "gave_up", "the deadline passed", False)


STALE = ("run", "skip", "fail")
"""What is done with a job that is too old when it would start."""


def too_old(stale: str) -> Ending:
    """The ending of a job of which no part has started before it was stale: ``skip`` or ``fail``."""
    reason = "it was too old when it would have started"
    if stale == "skip":
        return Ending("cancelled", "cancelled", reason, False, skipped=True)
    return Ending("failed", "gave_up", reason, False)


def cancelled(reason: str | None) -> Ending:
    return Ending("cancelled", "cancelled", reason or "cancelled by an operator", False)


def finished(reason: str | None) -> Ending:
    return Ending("completed", "partial", reason or "finished by an operator", True)


def _too_many(policy: Policy, counts: Counts) -> Ending:
    if policy.tolerate_percent is not None:
        allowed = f"{policy.tolerate_percent:g}%"
    else:
        allowed = str(policy.tolerate)
    abandoned = f" and {counts.abandoned} abandoned" if counts.abandoned else ""
    reason = f"{counts.failed} of {counts.created} parts failed{abandoned}, tolerated {allowed}"
    return Ending("failed", "too_many_failures", reason, False)


def parse_tolerate(value: int | str | None) -> tuple[int, float | None]:
    """``3``, ``"3"`` or ``"1.5%"`` as (count, percent). Raises `BadOption` for anything else."""
    if value is None:
        return 0, None
    text = str(value).strip()
    try:
        if text.endswith("%"):
            percent = float(text[:-1])
            if 0 <= percent <= 100:
                return 0, percent
        elif isinstance(value, int) or text.isdigit():
            count = int(text)
            if 0 <= count <= limits.JOB_WIDTH_PARTS:
                return count, None
    except ValueError:
        pass
    raise BadOption(f"tolerate={shown(value)}: give a number of parts such as 3, or a share such as '1%' (0% to 100%)")


class Backoff(msgspec.Struct, frozen=True):
    """Waiting times between attempts: ``first`` seconds, then ``factor`` times more each time, at most ``cap``.

    ``jitter`` is the share of the delay that is drawn at random (0: none, 1: all of it).
    """

    first: float = 1.0
    factor: float = 2.0
    cap: float = 300.0
    jitter: float = 0.5

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
                raise BadOption(f"Backoff({name}={shown(value)}): give a finite number, zero or more")
        if self.jitter > 1:
            raise BadOption(f"Backoff(jitter={self.jitter}): a share of the delay, 0 to 1")

    def delay(self, attempt: int, draw: float | None = None) -> float:
        """Seconds to wait after attempt number ``attempt`` (from 1) failed. Never overflows."""
        cap = min(self.cap, limits.DELAY_SECONDS_MAX)
        try:
            full = min(self.first * float(self.factor) ** (attempt - 1), cap) if self.first else 0.0
        except OverflowError:
            full = cap
        drawn = random.random() if draw is None else draw
        return full * (1.0 - self.jitter * drawn)


def make_stale(stale_after: Duration | None, stale: str) -> tuple[float | None, str | None]:
    """What is kept of the options ``stale_after`` (in seconds then) and ``stale``. Raises `BadOption`."""
    if stale not in STALE:
        raise BadOption(f"stale={shown(stale)}: give one of {', '.join(STALE)}")
    after = None if stale_after is None else seconds(stale_after, "stale_after")
    if after is None and stale != "run":
        raise BadOption(f"stale={shown(stale)}: say from which age on, as in stale_after='1h'")
    if after is None:
        return None, None
    if stale == "run":
        raise BadOption(f"stale_after={shown(stale_after)}: say what follows, stale='skip' or 'fail'")
    return after, stale


def make_policy(
    tolerate: int | str | None, fail_fast: bool | None, sample: int | None, quorum: int | None, give_up: str
) -> Policy:
    """The join policy of the options of `App.map`. Raises `BadOption`."""
    count, percent = parse_tolerate(tolerate)
    if give_up not in ("proceed", "abandon"):
        raise BadOption(f"give_up={shown(give_up)}: 'proceed' (the successor gets what has arrived) or 'abandon'")
    if quorum is not None and (type(quorum) is not int or quorum < 1 or tolerate is not None):
        raise BadOption(f"quorum={shown(quorum)}, tolerate={shown(tolerate)}: a quorum of at least 1, and not both")
    if sample is not None and (type(sample) is not int or sample < 1 or percent is None):
        raise BadOption(f"sample={shown(sample)}: at least 1, and only with a share such as tolerate='1%'")
    if fail_fast not in (None, True, False):
        raise BadOption(f"fail_fast={shown(fail_fast)}: True, False or None")
    early = tolerate is not None if fail_fast is None else fail_fast
    return Policy(
        tolerate=count,
        tolerate_percent=percent,
        sample=sample,
        fail_fast=bool(early),
        quorum=quorum,
        give_up=give_up,
    )


def check_quorum(quorum: int | None, parts: int) -> None:
    if quorum is not None and quorum > parts:
        raise BadOption(
            f"quorum={quorum} of {parts} parts can never be reached: give a smaller one. Nothing was written"
        )
