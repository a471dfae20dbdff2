"""``fanin check``: the promises as queries on the live database."""

from __future__ import annotations

from typing import Annotated

from fanin.cli import exits
from fanin.cli.advice import ADVICE
from fanin.cli.options import DEFAULT, Common, console, open_app, option, print_json
from fanin.cli.tables import finding_line, number
from fanin.domain.errors import BadOption

SHOWN = 5


def check(
    *,
    rows: Annotated[int, option("How many rows to show of each broken rule (default: 5).")] = SHOWN,
    common: Common = DEFAULT,
) -> int:
    """Check every invariant. Takes no lock and writes nothing; safe at any time. Exits with 1 if one is broken."""
    if rows < 1:
        raise BadOption(f"--rows {rows}: give 1 or more")
    found = []
    with open_app(common) as app:
        screen = console(common)
        for name, sentence, findings in app.store.check():
            found.append((name, sentence, findings))
            if common.json:
                continue
            if not findings:
                screen.print(f"[green]ok[/]      {name:<3} {sentence}")
                continue
            screen.print(f"[bold red]broken[/]  {name:<3} {sentence}  ({number(len(findings))} rows)")
            for finding in findings[:rows]:
                screen.print(f"            {finding_line(finding)}", markup=False, soft_wrap=True)
            screen.print(f"            → {ADVICE[name]}", markup=False, soft_wrap=True)
        broken = [name for name, _, findings in found if findings]
        if common.json:
            checks = [
                {
                    "name": name, "sentence": said, "violations": len(findings),
                    "rows": [f.row for f in findings[:rows]], "advice": ADVICE[name] if findings else None,
                }
                for name, said, findings in found
            ]  # fmt: skip
            print_json({"ok": not broken, "checks": checks})
        elif broken:
            screen.print(f"{len(broken)} of {len(found)} rules are broken: {', '.join(broken)}")
        else:
            screen.print(f"all {len(found)} rules hold")
    return exits.FAILED if broken else exits.OK
