"""Races of four to six parties, for schedules drawn by seeds. The answers named must all be given."""

from __future__ import annotations

from fanin.domain.model import Report
from fanin.domain.policy import Policy
from fanin.protocol import close
from fanin.testing.explorer import Actor
from tests.races.arena import Arena, appender, canceller, giver_up, reaper, redriver, renewer, saver, sealer, sweeper
from tests.races.scenarios import crowd, held, seal_what_is_open
from tests.races.stage import BUCKET, LAPSED


@crowd(
    "three last parts, cancel, give up and sweep", "A=CLOSED", "A=OK", "C=CANCELLED", "C=LATE", "G=GAVE_UP", "G=LATE"
)
def everybody_ends(arena: Arena) -> list[Actor]:
    """All ways to end a run at once: it must end once, with the counts of those that were accepted."""
    job_id, (one, two, three) = held(arena, 3, stripes=3, give_up_after=-1.0, policy=Policy(give_up="proceed"))
    workers = [arena.succeeds("A", one), arena.succeeds("B", two), arena.succeeds("D", three)]
    return [*workers, canceller("C", job_id), giver_up("G", job_id), sweeper("S", job_id)]


@crowd(
    "a stream: append, seal, two workers, cancel and redrive",
    "A=CLOSED",
    "A=OK",
    "C=CANCELLED",
    "L=BEFORE",
    "L=SEALED",
    "N=ADDED",
    "N=REFUSED",
    "R=REFUSED",
    "R=RUN 2",
    after=seal_what_is_open,
)
def stream(arena: Arena) -> list[Actor]:
    """A job that is filled, worked on, closed and opened again could end without a part that it took."""
    job_id = arena.open(2, stripes=2)
    one, two = arena.claims(2)
    creators = [appender("N", job_id, 2), sealer("L", job_id, 2)]
    workers = [arena.succeeds("A", one), arena.succeeds("B", two)]
    return [*creators, *workers, canceller("C", job_id), redriver("R", job_id)]


@crowd(
    "an old holder with its heartbeat and checkpoint, two new holders and the reaper",
    "Z=LAST",
    "Z=LOST",
    "H=HELD",
    "H=LOST",
    "K=LOST",
    "K=SAVED",
    "V=LAST",
    "W=LAST",
)
def leases(arena: Arena) -> list[Actor]:
    """Six who believe that a part is theirs: one result may be accepted."""
    arena.job(1, successor=None, attempts=2)
    (one,) = arena.claims(1, LAPSED)
    old = [arena.succeeds("Z", one), renewer("H", one), saver("K", one)]
    return [*old, arena.reclaimer("V"), arena.reclaimer("W"), reaper("R")]


@crowd(
    "three exchanges over two jobs, a reaper and the cancel of one job",
    "A=OK+OK/0",
    "A=OK+OK/1",
    "C=CANCELLED",
    "R=REAPED 0",
    "R=REAPED 1",
)
def exchanges(arena: Arena) -> list[Actor]:
    """Batches that overlap are begun again when a job is closed: they could wait in a circle, or claim twice."""
    one_id = arena.job(4, "one", stripes=2, attempts=1, successor=None)
    one, two, three = arena.claims(3)
    arena.claims(1, LAPSED)
    arena.job(4, "two", stripes=2, attempts=1, successor=None)
    four, five, six = arena.claims(3)
    workers = [arena.exchanger("A", one, five), arena.exchanger("B", six, two), arena.exchanger("D", four, three)]
    return [*workers, reaper("R"), canceller("C", one_id)]


@crowd(
    "the next run: an old attempt, sweep, two redrives, an exchange and cancel",
    "Z=CLOSED",
    "S=SWEPT 0",
    "S=SWEPT 1",
    "R=RUN 2",
    "Q=RUN 2",
    "C=CANCELLED",
    "C=LATE",
)
def next_run(arena: Arena) -> list[Actor]:
    """What the first run left behind could be counted in the second, or the second could be opened twice."""
    job_id, (one, two) = held(arena, 2, stripes=2)
    arena.settled([Report(two, "fail")])
    arena.store.run(lambda: close.cancel(BUCKET, job_id))
    _, (other,) = held(arena, 1, name="other", successor=None)
    parties = [arena.succeeds("Z", one), sweeper("S", job_id), redriver("R", job_id), redriver("Q", job_id)]
    return [*parties, arena.exchanger("A", other), canceller("C", job_id)]


@crowd(
    "fail fast: two failures, two completions, a lost part and cancel",
    "A=CLOSED",
    "A=OK",
    "B=LAST",
    "D=CLOSED",
    "D=OK",
    "C=CANCELLED",
    "C=LATE",
    "R=REAPED 0",
    "R=REAPED 1",
)
def failures(arena: Arena) -> list[Actor]:
    """Judges that lock all counters, in a crowd of those who write one."""
    job_id = arena.job(6, stripes=3, attempts=1, policy=Policy(fail_fast=True, tolerate=1))
    arena.claims(1, LAPSED)
    one, two, three, four = arena.claims(4)
    workers = [arena.fails("A", one), arena.fails("B", two), arena.succeeds("D", three), arena.succeeds("E", four)]
    return [*workers, reaper("R"), canceller("C", job_id)]


@crowd(
    "a quorum: three successes, a failure and give up",
    "A=CLOSED",
    "A=LAST",
    "A=OK",
    "F=CLOSED",
    "F=OK",
    "G=GAVE_UP",
    "G=LATE",
)
def quorums(arena: Arena) -> list[Actor]:
    """Any two successes end the job: the third, the failure and the deadline come too late or before."""
    job_id, (one, two, three, four, _) = held(
        arena, 5, stripes=3, give_up_after=-1.0, policy=Policy(quorum=2, give_up="proceed")
    )
    workers = [arena.succeeds("A", one), arena.succeeds("B", two), arena.succeeds("D", three), arena.fails("F", four)]
    return [*workers, giver_up("G", job_id)]


@crowd(
    "batches over two jobs, said by four in four orders",
    "A=LAST+LAST+LAST+LAST",
    "B=LAST+LAST+LAST+LAST",
    "D=LAST+LAST+LAST+LAST",
    "E=LAST+LAST+LAST+LAST",
)
def batches(arena: Arena) -> list[Actor]:
    """The same parts in every order: any two could lock them crosswise, and each part counts once."""
    arena.job(2, "one", stripes=2)
    one, two = arena.claims(2)
    arena.job(2, "two", stripes=2)
    three, four = arena.claims(2)
    orders = ([one, two, three, four], [four, three, two, one], [three, one, four, two], [two, four, one, three])
    return [arena.succeeds(name, *order) for name, order in zip("ABDE", orders, strict=True)]
