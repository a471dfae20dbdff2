"""The options that every command has, and the way from them to an application."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

if TYPE_CHECKING:
    from rich.console import Console

    import fanin


def option(help: str, *names: str, group: Group | None = None) -> Parameter:
    """An option; its help says the default where there is one to say."""
    if group is None:
        return Parameter(name=names or None, help=help, negative=(), show_default=False)
    return Parameter(
        name=names or None, help=help, negative=(), show_default=False, group=group, allow_leading_hyphen=True
    )


COMMON = Group("Common options", sort_key=10)


@Parameter(name="*", group=COMMON)
@dataclass(frozen=True)
class Common:
    """What every command takes."""

    url: Annotated[
        str | None,
        option("Database: sqlite:///FILE or postgresql://... (default: FANIN_URL, else sqlite:///fanin.db)."),
    ] = None
    json: Annotated[bool, option("Print JSON for programs.")] = False
    no_color: Annotated[bool, option("No colour on a terminal; NO_COLOR is heard too.")] = False
    debug: Annotated[bool, option("Show a traceback when something fails.")] = False


DEFAULT = Common()


def open_app(common: Common) -> fanin.App:
    """An application without tasks on the database that was named."""
    import fanin

    return fanin.App(common.url)


def console(common: Common, *, stderr: bool = False) -> Console:
    """A terminal, or a plain stream whose lines are not folded."""
    from rich.console import Console

    plain = common.no_color or bool(os.environ.get("NO_COLOR"))
    made = Console(stderr=stderr, highlight=False, color_system=None if plain else "auto")
    if not made.is_terminal:
        made.width = 400
    return made


def print_json(value: Any) -> None:
    """One JSON document: indented on a terminal, on one line elsewhere."""
    import msgspec

    data = msgspec.json.encode(value)
    sys.stdout.buffer.write((msgspec.json.format(data, indent=2) if sys.stdout.isatty() else data) + b"\n")
    sys.stdout.flush()


def say(text: str) -> None:
    """A line for people, on standard error."""
    print(f"fanin: {text}", file=sys.stderr, flush=True)
