"""``fanin purge``: remove jobs that ended long ago."""

from __future__ import annotations

import sys
from typing import Annotated

import msgspec

from fanin.cli import exits
from fanin.cli.options import DEFAULT, Common, open_app, option, print_json, say
from fanin.cli.tables import number
from fanin.domain.durations import seconds
from fanin.domain.purged import Purged

KEPT = {
    "live": "a job of them goes on, or has ended later",
    "flow": "they belong to a flow that waits for a person",
    "events": "events of them have not left; --unsent takes them along",
    "outputs": "outputs of lost attempts are not swept yet",
    "effects": "effects of them wait for their call, or for a person",
}


def purge(
    *,
    older_than: Annotated[str, option("How long ago a job must have ended: 12h, 30d.", "--older-than")],
    unsent: Annotated[
        bool, option("Also jobs with events that no relay has delivered, and with effects that are stuck.")
    ] = False,
    outputs: Annotated[
        bool, option("Also remove the files that their parts left. Without it they stay, and are no longer known.")
    ] = False,
    dry_run: Annotated[bool, option("Only say what would go.", "--dry-run")] = False,
    common: Common = DEFAULT,
) -> int:
    """Remove jobs that ended long ago, each with its whole tree: parts, history, events that have left, outputs.

    Nothing is removed of a tree of which a job goes on. Safe beside workers; stop it and say it again.
    """
    from fanin.runtime.purge import purge as run

    age = seconds(older_than, "--older-than")
    with open_app(common) as app:
        found = run(app.store, age, unsent=unsent, outputs=outputs, dry_run=dry_run, tell=_tell)
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    if common.json:
        print_json(msgspec.to_builtins(found))
    else:
        print("\n".join(_lines(found, dry_run)))
    if found.unreachable:
        say(f"{found.unreachable} files could not be reached from this host; say this where they lie")
    return exits.FAILED if found.unreachable else exits.OK


def _lines(found: Purged, dry_run: bool) -> list[str]:
    verb = "would remove" if dry_run else "removed"
    lines = [
        f"{verb} {number(found.jobs)} jobs in {number(found.trees)} trees, with {number(found.parts)} parts and "
        f"{number(found.events)} events ({number(found.events_unsent)} of them had not left)"
    ]
    if found.flows:
        lines.append(f"{number(found.flows)} of the trees {'are' if dry_run else 'were'} flows")
    if found.outputs and dry_run:
        lines.append(f"they have {number(found.outputs)} outputs")
    elif found.outputs:
        lines.append(
            f"of {number(found.outputs)} outputs {number(found.objects_removed)} files were removed, "
            f"{number(found.objects_left)} stay where they lie"
        )
    lines += [f"kept {number(n)} trees: {KEPT[reason]}" for reason, n in found.kept.items() if n]
    return lines


def _tell(so_far: Purged) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{number(so_far.jobs)} jobs, {number(so_far.parts)} parts", end="", file=sys.stderr, flush=True)
