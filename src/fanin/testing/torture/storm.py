"""The harm: kill, freeze, drain, cut, move the clock, restart the server. Then the calm, in which all must end."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Protocol

import msgspec

from fanin.domain.errors import FaninError, Unavailable
from fanin.runtime.sweeper import Swept, sweep
from fanin.stores import open_store
from fanin.testing.clock import Clock
from fanin.testing.proxy import PgProxy
from fanin.testing.torture import breaks, fate, outside
from fanin.testing.torture.driver import DriverSpec, calm_file
from fanin.testing.torture.fate import Life
from fanin.testing.torture.ground import Ground
from fanin.testing.torture.nursery import Nursery
from fanin.testing.torture.plan import LEASE_SECONDS
from fanin.testing.torture.worker import WorkerSpec

TICK_SECONDS = 0.02
CUT_SHARE = 0.05
JUMPS_SECONDS = (3600.0, -3600.0, 600.0, 30.0, -30.0)
BURIAL_SECONDS = 10.0
AFTER_ALL_JUMPS_SECONDS = 2 * 3600.0


class Server(Protocol):
    """A server that the torture has started itself and may crash."""

    def crash(self) -> None:
        """Stop it as a power cut would, and start it again."""


class Options(msgspec.Struct, frozen=True):
    seed: int
    workers: int = 8
    jobs: int | None = None
    broken: str | None = None
    """The guard that is missing, see `breaks`."""


class Storm:
    """One storm and its calm. ``tell`` gets a line about once a second."""

    def __init__(self, ground: Ground, options: Options, folder: str, server: Server | None = None) -> None:
        self.counts: Counter[str] = Counter()
        """kills, kills_at_points, driver_kills, frozen, zombies, drains, resets, clock_moves, restarts, crashed."""
        self.last: tuple[int, int, int] = (0, 0, 0)
        self.swept = Swept()
        self._ground = ground
        self._options = options
        self._folder = folder
        self._server = server
        self._random = random.Random(options.seed)
        self._stack = ExitStack()
        self._names = 0
        self._workers: dict[int, Life | None] = dict.fromkeys(range(options.workers))
        self._driver: Life | None = None
        self._next_driver = 0.0
        self._finished = False
        self._calm = False
        self._clock_file = None if ground.postgres else os.path.join(folder, "clock")
        self.proxy: PgProxy | None = None

    def __enter__(self) -> Storm:
        environment = outside.environment(self._folder)
        if self._options.broken:
            environment[breaks.VARIABLE] = self._options.broken
        self._nursery = Nursery(self._folder, environment)
        self._stack.callback(self._nursery.close)
        self._store = open_store(self._ground.url)
        self._stack.callback(self._store.close)
        self._clock = Clock(self._store, self._clock_file)
        if self._ground.address is not None:
            proxy = self._stack.enter_context(PgProxy(self._ground.address, seed=self._options.seed))
            if self._reaches(self._ground.through(proxy.port)):
                self.proxy = proxy
        return self

    def _reaches(self, url: str) -> bool:
        """A server that insists on TLS cannot be reached through a proxy that reads: then nothing is cut."""
        try:
            store = open_store(url)
            assert store.buckets > 0
            store.close()
        except FaninError:
            return False
        return True

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def faults(self) -> dict[str, int]:
        """What was done so far, by the storm and by its proxy."""
        return dict(self.counts) | (dict(self.proxy.counts) if self.proxy is not None else {})

    # The two phases.

    def rage(self, seconds: float, tell: Callable[[float], None], enough: Callable[[], bool]) -> None:
        """Harm for so long, or until ``enough()``, which is asked about twice a second."""
        if self.proxy is not None:
            self.proxy.cut_commits(CUT_SHARE)
        began = time.monotonic()
        self._next_clock = began + self._random.uniform(1.0, 3.0)
        self._next_reset = began + self._random.uniform(2.0, 4.0)
        self._next_restart = began + self._random.uniform(4.0, 8.0)
        self._clock_back: float | None = None
        told = asked = began
        while (now := time.monotonic()) - began < seconds:
            self._tick(now)
            self._weather(now)
            if now - told >= 1.0:
                told = now
                tell(now - began)
            if now - asked >= 0.5:
                asked = now
                if enough():
                    return
            time.sleep(TICK_SECONDS)

    def settle(self, deadline: float, tell: Callable[[float], None], still: float | None = None) -> float | None:
        """No more faults: fresh processes bring everything to its end. Seconds that took; None past the deadline, or
        when only events are left and none has left for ``still`` seconds."""
        self._calm = True
        with open(calm_file(self._folder), "w", encoding="ascii"):
            pass
        for life in [*self._workers.values(), self._driver]:
            if life is not None:
                self._nursery.signal(life.tag, signal.SIGKILL)
        if self.proxy is not None:
            self.proxy.cut_commits(0)
            self.proxy.reset()
        self._bury()
        # What was claimed while the clock was ahead must not wait for it for an hour.
        self._patiently(lambda: self._clock.advance(AFTER_ALL_JUMPS_SECONDS))
        began = told = time.monotonic()
        moved = (self.last, began)
        while (now := time.monotonic()) - began < deadline:
            self._tick(now)
            if now - told >= 1.0:
                told = now
                tell(now - began)
            if self._finished and self.look()[0] == 0 and self.last[2] == 0:
                self.swept = sweep(self._store, 0.0, 0.0)
                return now - began
            if self.last != moved[0] or self.last[0]:
                moved = (self.last, now)
            elif still is not None and self._finished and now - moved[1] > still:
                return None
            time.sleep(TICK_SECONDS * 5)
        return None

    def look(self) -> tuple[int, int, int]:
        """Jobs that have not ended, all jobs, and what else is not at its end: stripes, events, flows, effects."""
        try:
            self.last = self._ground.pending()
        except Exception:
            if self._server is None:
                raise
            self.counts["looks_refused"] += 1  # the server is just being restarted
        return self.last

    # The processes.

    def _tick(self, now: float) -> None:
        for news in self._nursery.news():
            self._hear(news, now)
        for slot, life in self._workers.items():
            if life is None:
                self._workers[slot] = self._new_worker(slot)
            else:
                self._act(life, now)
        if self._driver is None and not self._finished and now >= self._next_driver:
            self._driver = self._new_driver()
        elif self._driver is not None:
            self._act(self._driver, now)

    def _hear(self, news: dict[str, object], now: float) -> None:
        life = next((x for x in [*self._workers.values(), self._driver] if x and x.tag == news["tag"]), None)
        if life is None:
            return
        if news["what"] == "ready":
            life.begin(now)
            return
        if news["what"] == "frozen":
            if life.frozen_since is None:
                life.frozen_since = now
                life.thaw_at = now + LEASE_SECONDS * self._random.uniform(1.3, 2.2)
                self.counts["frozen"] += 1
            return
        is_driver = life is self._driver
        if news["signal"] == signal.SIGKILL and not self._calm:
            self.counts["driver_kills" if is_driver else "kills"] += 1
            self.counts["kills_at_points"] += int(life.dies_at_point and not is_driver)
        elif news["signal"] == 0 and news["code"] == 0:
            self._finished = self._finished or is_driver
            self.counts["drains"] += int(not is_driver)
        elif news["signal"] == signal.SIGTERM:
            self.counts["ended_unborn"] += 1  # asked to drain before it was ready to hear it
        elif news["signal"] != signal.SIGKILL:
            self.counts["crashed"] += 1
            self._next_driver = now + 0.3
        if is_driver:
            self._driver = None
        else:
            self._workers = {slot: None if x is life else x for slot, x in self._workers.items()}

    def _bury(self) -> None:
        """Until all are dead: what one of them takes after the last jump would wait for its time-out."""
        until = time.monotonic() + BURIAL_SECONDS
        while any([*self._workers.values(), self._driver]) and time.monotonic() < until:
            for news in self._nursery.news():
                self._hear(news, time.monotonic())
            time.sleep(TICK_SECONDS)

    def _act(self, life: Life, now: float) -> None:
        """What was in store for this process at this moment."""
        if self._calm or not (life.ready or life.frozen_since is not None):
            return
        if life.frozen_since is not None:
            if now >= life.thaw_at:
                self._nursery.signal(life.tag, signal.SIGCONT)
                self.counts["paused_past_lease"] += 1
                self.counts["zombies"] += int(life.holds_work)
                life.frozen_since, life.holds_work = None, False
                life.kill_at = now + self._random.uniform(0.3, 1.0)
        elif now >= life.kill_at:
            self._nursery.signal(life.tag, signal.SIGKILL)
            life.kill_at = now + 3600
            life.dies_at_point = False
        elif life.freeze_at is not None and now >= life.freeze_at:
            life.freeze_at = None
            self._nursery.signal(life.tag, signal.SIGSTOP)
        elif life.drain_at is not None and now >= life.drain_at:
            life.drain_at = None
            self._nursery.signal(life.tag, signal.SIGTERM)

    def _new_worker(self, slot: int) -> Life:
        draw = self._random
        self._names += 1
        life = Life() if self._calm else fate.of_worker(draw)
        spec = WorkerSpec(
            url=self._url(slot), folder=self._folder, name=f"{self._names}", clock_file=self._clock_file,
            crash=life.crash, batch=draw.choice((4, 16, 64)), now=draw.random() < 0.5, grace=draw.choice((0.02, 0.5)),
            relay=slot % 4 < 2,  # one through the proxy and one not
        )  # fmt: skip
        life.tag = self._nursery.spawn("worker", spec)
        return life

    def _new_driver(self) -> Life:
        self._names += 1
        life = Life() if self._calm else fate.of_driver(self._random)
        spec = DriverSpec(
            url=self._url(1), folder=self._folder, name=f"{self._names}", seed=self._options.seed,
            postgres=self._ground.postgres, clock_file=self._clock_file, crash=life.crash, jobs=self._options.jobs,
        )  # fmt: skip
        life.tag = self._nursery.spawn("driver", spec)
        return life

    def _url(self, slot: int) -> str:
        """Every second process talks through the proxy while it storms."""
        if self.proxy is None or self._calm or slot % 2 == 0:
            return self._ground.url
        return self._ground.through(self.proxy.port)

    # The surroundings.

    def _weather(self, now: float) -> None:
        draw = self._random
        if self._clock_back is not None:
            if now >= self._clock_back:
                self._patiently(self._clock.reset)
                self._clock_back = None
                self._next_clock = now + draw.uniform(3.0, 6.0)
        elif now >= self._next_clock:
            self._patiently(lambda: self._clock.advance(draw.choice(JUMPS_SECONDS)))
            self.counts["clock_moves"] += 1
            self._clock_back = now + draw.uniform(0.5, 1.0)
        if self.proxy is not None and now >= self._next_reset:
            self.counts["resets"] += self.proxy.reset()
            self._next_reset = now + draw.uniform(3.0, 6.0)
        if self._server is not None and now >= self._next_restart:
            self._server.crash()
            self.counts["restarts"] += 1
            self._next_restart = time.monotonic() + draw.uniform(10.0, 20.0)

    def _patiently(self, call: Callable[[], None]) -> None:
        """The database may be busy, or away."""
        for _ in range(20):
            try:
                return call()
            except Unavailable:
                self.counts["clock_tries"] += 1
                time.sleep(0.2)
        return call()
