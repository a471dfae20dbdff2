"""A job that a producer feeds: open in a ``with`` block, sealed at its end."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

from fanin.domain import limits
from fanin.domain.errors import FaninError, Refused
from fanin.domain.model import NewJob
from fanin.job import Job
from fanin.runtime.codec import check_items
from fanin.runtime.payloads import Feed, Wanted
from fanin.runtime.task import Application

log = logging.getLogger("fanin")

FLUSH_SECONDS = 0.25
"""An item that comes so long after the last write is written at once; between them, items are written together."""


class Producer:
    """What `OpenJob` and `AsyncOpenJob` know: the feed, the number of the next item, and when was written last.

    again: whether the same call would go on with this job, because it has a key or is made by a handler.
    """

    def __init__(self, new: NewJob, most: int, encode: Callable[[Any, int], Wanted], again: bool) -> None:
        self.new = new
        self.feed = Feed(new, most)
        self.again = again
        self._encode = encode
        self._number = 0
        self._wrote = 0.0
        self._inside = False
        self._entered = False

    def enter(self) -> None:
        if self._entered:
            raise Refused(f"job {self.new.id} has had its with block: call app.open once for each")
        self._inside = self._entered = True

    def leave(self) -> None:
        self._inside = False

    def take(self, item: Any) -> bool:
        """Note an item. Whether what was noted should be written now. Raises `Refused` outside of the block."""
        self.check()
        due = self.feed.take(self._encode(item, self._number))
        self._number += 1
        return due or time.monotonic() - self._wrote >= FLUSH_SECONDS

    def check(self) -> None:
        if not self._inside:
            raise Refused(f"job {self.new.id} takes no parts here: add them inside of the with block of app.open")

    def wrote(self) -> None:
        self._wrote = time.monotonic()

    def reason(self, problem: BaseException) -> str:
        """Why the job is cancelled: the exception that has left the block."""
        text = f"its producer failed: {type(problem).__name__}: {problem}".replace("\0", "\\0")
        return text.encode("utf-8", "backslashreplace").decode()[: limits.REASON_CHARS]


class OpenJob(Job):
    """A `Job` to which parts are added inside of its ``with`` block. Made by `App.open`."""

    def __init__(self, app: Application, producer: Producer, *, run: bool = False) -> None:
        super().__init__(app, producer.new.id, run=run)
        self._producer = producer

    def __enter__(self) -> OpenJob:
        self._producer.enter()
        self._app.store.run(self._producer.feed.open())
        return self

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None, *_: object) -> None:
        try:
            if problem is None:
                self.flush()
                if not self._producer.feed.ended:
                    self._app.store.run(self._producer.feed.seal())
            elif not self._producer.again:
                self.cancel(self._producer.reason(problem))
        except FaninError:
            if problem is None:
                raise
            log.warning("job %s could not be cancelled; it ends at its deadline", self.id, exc_info=True)
        finally:
            self._producer.leave()

    def add(self, item: Any) -> bool:
        """Add one part, ``task(item)``. It may run before the job is sealed; a worker sees it at once, or with the next
        ones if many come quickly. False if the job has ended meanwhile and takes no more.

        Raises `BadPayload`, `LimitExceeded`, `KeyConflict` if the job was opened before with another item in this
        place, `Refused` outside of the block.
        """
        if self._producer.take(item):
            self.flush()
        return not self._producer.feed.ended

    def extend(self, items: Iterable[Any]) -> bool:
        """`add` each. Stops reading ``items`` when the job has ended, and returns False then."""
        return all(self.add(item) for item in check_items(items))

    def flush(self) -> None:
        """Write what was added and not written yet."""
        self._producer.check()
        if (append := self._producer.feed.flush()) is not None and not self._producer.feed.ended:
            self._app.store.run(append)
        self._producer.wrote()
