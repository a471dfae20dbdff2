"""``fanin relay``: deliver the events of a database to a receiver."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from fanin.cli import exits
from fanin.cli.options import DEFAULT, Common, open_app, option
from fanin.domain.errors import BadOption

if TYPE_CHECKING:
    from fanin.runtime.relay import Relay
    from fanin.stores import Store

USAGE = "fanin relay [OPTIONS] --to URL"


def relay(
    *,
    to: Annotated[
        list[str] | None,
        option(
            "Receiver: stdout, python:MODULE:FUNCTION, https://..., redis://, nats://, amqp://, kafka://. Of several, "
            "each gets every event."
        ),
    ] = None,
    until_idle: Annotated[bool, option("End when no event is due.")] = False,
    name: Annotated[str | None, option("Name of the relay (default: host, process and a random end).")] = None,
    batch: Annotated[int | None, Parameter(help="Most events in one batch (default: what the receiver takes).")] = None,
    lease: Annotated[str, option("How soon others take over the events of a relay that died (default: 60s).")] = "60s",
    common: Common = DEFAULT,
) -> int:
    """Deliver events until a signal, each at least once. The first SIGTERM or Ctrl-C ends it after the batch that is
    under way; nothing is lost. Several relays may run at once, all with the same receivers.
    """
    from fanin.cli.logs import configure
    from fanin.domain.durations import seconds
    from fanin.runtime.relay import Relay
    from fanin.runtime.sinks import open_sink
    from fanin.runtime.task import check_name

    if not to:
        raise BadOption("--to: name a receiver, for example --to stdout or --to redis://localhost:6379")
    if name is not None:
        check_name(name, "name")
    sink = open_sink(*to)
    log = configure(json=common.json)
    with open_app(common) as app:
        made = Relay(app.store, sink, name=name, batch=batch, lease=seconds(lease, "--lease"))
        signals: list[int] = []

        def on_signal(number: int, frame: Any) -> None:
            signals.append(number)
            if len(signals) > 1:
                os._exit(exits.INTERRUPTED)
            made.stop()

        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, on_signal)
        beside = Beside(made)
        if until_idle:
            made.finish()
        beside.join()
    log.info("relay %s ended: %s", made.name, beside.account())
    return exits.OK


class Beside:
    """A relay in a thread of its own: a signal's handler never waits for a lock that the relay holds."""

    def __init__(self, made: Relay) -> None:
        self.relay = made
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="fanin-relay", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        from fanin.runtime.sinks import SinkClosed

        try:
            self.relay.run()
        except SinkClosed:
            pass  # the reader has seen enough
        except BaseException as problem:
            self._problem = problem

    def join(self) -> None:
        while self._thread.is_alive():
            self._thread.join(1.0)  # a join without a limit would not let signals in
        self.relay.sink.close()
        if self._problem is not None:
            raise self._problem

    def account(self) -> str:
        made = self.relay
        return f"{made.published} events published, {made.refused} refused, {made.parked} parked"


def beside_workers(store: Store, urls: Sequence[str]) -> Beside:
    """The relay of ``fanin work --relay``."""
    from fanin.runtime.relay import Relay
    from fanin.runtime.sinks import open_sink

    return Beside(Relay(store, open_sink(*urls)))
