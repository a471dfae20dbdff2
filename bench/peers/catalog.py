"""The peers: what is installed, how many parts they are given, what they promise and what they do not."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Peer:
    """``store``: redis, postgres, sqlite or memory. ``parts``: fewer for those that take long. ``python``: the oldest
    that it runs on. ``join``: what the fan-in is; ``survives``: what of it is left when a process dies."""

    name: str
    script: str
    requirements: tuple[str, ...]
    store: str
    parts: int
    join: str
    survives: str
    python: tuple[int, int] = (3, 11)
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> str:
        """The name of its environment: one for each set of requirements."""
        return self.script.removeprefix("on_")


MANY, SOME, FEW = 10_000, 2_000, 500

PEERS = (
    Peer("ProcessPoolExecutor", "on_pool", (), "memory", MANY, "`map` in the caller", "nothing"),
    Peer("ProcessPoolExecutor, chunks of 100", "on_pool", (), "memory", MANY, "`map` in the caller", "nothing",
         environment={"FANIN_PEER_CHUNK": "100"}),
    Peer("joblib", "on_joblib", ("joblib",), "memory", MANY, "a list in the caller", "nothing"),
    Peer("Dask distributed", "on_dask", ("distributed",), "memory", SOME, "a task over all futures",
         "nothing when the scheduler dies; a lost worker's tasks are computed again"),
    Peer("SAQ", "on_saq", ("saq[redis]", "typing_extensions"), "redis", MANY, "a job that polls for all results",
         "the parts; the waiting is in memory: a retry of that job submits all parts again"),
    Peer("Huey (Redis)", "on_huey", ("huey", "redis"), "redis", MANY, "chord",
         "what is queued; a task that runs when its worker dies is lost, and the chord with it"),
    Peer("Huey (SQLite)", "on_huey", ("huey", "redis"), "sqlite", SOME, "chord",
         "what is queued; a task that runs when its worker dies is lost, and the chord with it"),
    Peer("Celery", "on_celery", ("celery[redis]",), "redis", SOME, "chord",
         "what is queued; with early acknowledgement, the default, a task that runs is lost, and the chord with it"),
    Peer("Dramatiq", "on_dramatiq", ("dramatiq[redis]",), "redis", SOME, "group callback, which fetches the results",
         "the parts; one that is delivered again is counted again, so the callback can come early or twice"),
    Peer("PgQueuer", "on_pgqueuer", ("pgqueuer", "asyncpg"), "postgres", MANY, "made by hand: counter and results",
         "the parts; the callback is lost if a process dies between the last count and its enqueueing"),
    Peer("Procrastinate", "on_procrastinate", ("procrastinate", "psycopg[binary,pool]"), "postgres", SOME,
         "made by hand: counter and results",
         "the parts, when stalled jobs are retried; the callback is lost if a process dies just before enqueueing it"),
    Peer("Oban", "on_oban", ("oban", "psycopg[binary,pool]"), "postgres", SOME, "made by hand: counter and results",
         "the parts; the callback is lost if a process dies between the last count and its enqueueing",
         python=(3, 12)),
    Peer("DBOS", "on_dbos", ("dbos", "psycopg[binary]"), "postgres", FEW, "a workflow that waits for its children",
         "everything: the parent workflow goes on from its last recorded step"),
)  # fmt: skip


def chosen(names: list[str]) -> list[Peer]:
    """Those whose name begins with one of ``names``, whatever the case; all if there are none. Raises LookupError."""
    wanted = [name.lower() for name in names]
    for name in wanted:
        if not any(peer.name.lower().startswith(name) for peer in PEERS):
            raise LookupError(f"no peer is called {name!r}; there are: {', '.join(peer.name for peer in PEERS)}")
    return [peer for peer in PEERS if not wanted or any(peer.name.lower().startswith(name) for name in wanted)]
