"""``fanin outputs`` and ``fanin sweep``: the files that parts left, and those of lost attempts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from fanin.cli import exits
from fanin.cli.options import DEFAULT, Common, open_app, option, print_json, say
from fanin.cli.tables import number, short
from fanin.cli.verbs import JobName
from fanin.domain.durations import seconds
from fanin.domain.errors import BadOption


def outputs(
    job: JobName,
    /,
    *,
    name: Annotated[str | None, option("Only the outputs called so.")] = None,
    save: Annotated[Path | None, option("Write them into this folder, as INDEX-NAME.", "--save")] = None,
    common: Common = DEFAULT,
) -> int:
    """List the files that the succeeded parts of a job left, or save them, checked against their digests."""
    if save is not None and not save.is_dir():
        raise BadOption(f"--save {save}: there is no such folder; make it first")
    with open_app(common) as app:
        found = app.job(job)
        rows = []
        for output in found.outputs(name):
            target = output.save(save / f"{output.idx}-{output.name}") if save is not None else None
            rows.append((output.idx, output.name, output.size, output.digest, str(target or output.url)))
    if common.json:
        names = ("part", "name", "bytes", "sha256", "where")
        print_json([dict(zip(names, row, strict=True)) for row in rows])
    elif not rows:
        say(f"no succeeded part of job {short(found.id)} has left an output{f' {name}' if name else ''}")
    else:
        width = max(len("name"), *(len(called) for _, called, _, _, _ in rows))
        print(f"{'part':>8}  {'name':<{width}}  {'bytes':>13}  where")
        for idx, called, size, _, where in rows:
            print(f"{idx:>8}  {called:<{width}}  {number(size):>13}  {where}")
    return exits.OK


def sweep(
    *,
    grace: Annotated[str, option("Leave outputs alone that are younger.")] = "1h",
    longest: Annotated[str, option("The longest upload: what was removed is removed once more after this.")] = "1d",
    common: Common = DEFAULT,
) -> int:
    """Remove the outputs of attempts that lost their part. Workers do so by themselves, about every minute."""
    from fanin.runtime.sweeper import sweep as run

    with open_app(common) as app:
        swept = run(app.store, seconds(grace, "--grace"), seconds(longest, "--longest"))
    if common.json:
        print_json(msgspec.to_builtins(swept))
    else:
        print(f"removed {swept.removed}, removed once more {swept.forgotten}, decided to be kept {swept.kept}")
    if swept.unreachable:
        say(f"{swept.unreachable} could not be reached from this host; run this where their directory or bucket is")
    return exits.FAILED if swept.unreachable else exits.OK
