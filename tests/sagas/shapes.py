"""The flows that are surveyed, and what may fail in each."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import fanin
from tests.sagas.outside import Firm


class Shape(NamedTuple):
    declare: Callable[[Firm, fanin.Flow], None]
    items: str
    """All that can fail: the item of each part, those of nested jobs too."""


def chain(firm: Firm, flow: fanin.Flow) -> None:
    before: list[str] = []
    for name in "abc":
        flow.step(firm.do, f"{name}/0", name=name, after=before, undo=firm.back)
        before = [name]


def diamond(firm: Firm, flow: fanin.Flow) -> None:
    flow.step(firm.do, "a/0", name="a", undo=firm.back)
    flow.step(firm.do, "b/0", name="b", after="a", undo=firm.back)
    flow.step(firm.do, "c/0", name="c", after="a", undo=firm.back)
    flow.step(firm.do, "d/0", name="d", after=["b", "c"], undo=firm.back)


def mapped(firm: Firm, flow: fanin.Flow) -> None:
    """A step of three parts that are found by one before it, and one whose parts are given."""
    found = flow.step(firm.listing, "a/0", ["b/0", "b/1", "b/2"], name="a", undo=firm.forget)
    flow.map(firm.do, found, name="b", undo=firm.back)
    flow.map(firm.do, ["c/0", "c/1"], name="c", after="b", undo=firm.back)


def nested(firm: Firm, flow: fanin.Flow) -> None:
    """A part that ends with a job, and one whose job has a successor, beside each other."""
    flow.map(firm.tree, ["a/0"], name="a", undo=firm.back)
    flow.step(firm.joined, "b/0", name="b", undo=firm.back)
    flow.step(firm.do, "c/0", name="c", after=["a", "b"], undo=firm.back)


def split(firm: Firm, flow: fanin.Flow) -> None:
    """A job that is split into two batches, below a step."""
    flow.step(firm.wide, "a/0", name="a", undo=firm.back)
    flow.step(firm.do, "b/0", name="b", after="a", undo=firm.back)


def conditional(firm: Firm, flow: fanin.Flow) -> None:
    """``c`` stands in for ``b`` where that fails, and ``d`` runs after whichever was done."""
    flow.step(firm.do, "a/0", name="a", undo=firm.back)
    flow.step(firm.do, "b/0", name="b", after="a", undo=firm.back)
    flow.step(firm.do, "c/0", name="c", after="b", on="failed", undo=firm.back)
    flow.step(firm.do, "d/0", name="d", after=["b", "c"], on="any", undo=firm.back)


def mixed(firm: Firm, flow: fanin.Flow) -> None:
    """Undone by a job, by a person, not at all, by a job."""
    flow.step(firm.do, "a/0", name="a", undo=firm.back)
    flow.map(firm.do, ["b/0", "b/1"], name="b", after="a", undo=fanin.manual("call the bank"))
    flow.step(firm.do, "c/0", name="c", after="b")
    flow.step(firm.do, "d/0", name="d", after="c", undo=firm.back)
    flow.step(firm.do, "e/0", name="e", after="d", undo=fanin.manual("ask them"))


def calling(firm: Firm, flow: fanin.Flow) -> None:
    """Effects: called by a relay, by the attempt itself, and by a relay once alone."""
    flow.map(firm.notify, ["a/0", "a/1"], name="a", undo=firm.back)
    flow.step(firm.bill, "b/0", name="b", after="a", undo=firm.back)
    flow.step(firm.order, "c/0", name="c", after="b", undo=firm.back)
    flow.step(firm.do, "d/0", name="d", after="c")


def plain(firm: Firm, flow: fanin.Flow) -> None:
    """Nothing is undone, so it may be run again."""
    flow.map(firm.do, ["a/0", "a/1"], name="a")
    flow.step(firm.tree, "b/0", name="b", after="a")
    flow.step(firm.do, "c/0", name="c", after="a")
    flow.step(firm.do, "d/0", name="d", after=["b", "c"])


SHAPES: dict[str, Shape] = {
    "chain": Shape(chain, "a/0 b/0 c/0"),
    "diamond": Shape(diamond, "a/0 b/0 c/0 d/0"),
    "mapped": Shape(mapped, "a/0 b/0 b/1 b/2 c/0 c/1"),
    "nested": Shape(nested, "a/0/0 a/0/1 b/0/0 b/0/1 c/0"),
    "split": Shape(split, "a/0/0 a/0/1 a/0/2 a/0/3 b/0"),
    "conditional": Shape(conditional, "a/0 b/0 c/0 d/0"),
    "mixed": Shape(mixed, "a/0 b/0 b/1 c/0 d/0 e/0"),
    "calling": Shape(calling, "a/0 a/1 b/0 c/0 d/0"),
    "plain": Shape(plain, "a/0 a/1 b/0/0 b/0/1 c/0 d/0"),
}
