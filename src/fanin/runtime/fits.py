"""Whether what one handler returns can be what another takes, as far as their annotations say. What is not annotated,
or of a kind that is not known here, fits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec import inspect as kinds

from fanin.domain.errors import BadOption
from fanin.runtime.codec import joined_type, type_name

if TYPE_CHECKING:
    from fanin.runtime.task import Task

_TEXTS = (kinds.StrType, kinds.DateTimeType, kinds.DateType, kinds.TimeType, kinds.TimeDeltaType, kinds.UUIDType)
_OBJECTS = (kinds.DictType, kinds.TypedDictType, kinds.DataclassType)
_LISTS = (kinds.ListType, kinds.SetType, kinds.FrozenSetType, kinds.VarTupleType)
_NAMES = (
    (kinds.NoneType, "null"), (kinds.BoolType, "bool"), (kinds.IntType, "int"), (kinds.FloatType, "float"),
    (kinds.BytesType, "bytes"), (_TEXTS, "text"), (_OBJECTS, "object"), ((*_LISTS, kinds.TupleType), "list"),
)  # fmt: skip


def check_successor(then: Task[..., Any], before: Task[..., Any]) -> None:
    """Raise `BadOption` if ``then`` cannot be the successor of a job of ``before``."""
    signature = then.signature
    if not signature.joins_one:
        raise BadOption(
            f"then={then.name}{signature}: a successor takes one argument, what the job has left; annotate its first "
            f"parameter fanin.Joined[{_result(before)}]"
        )
    if signature.joined is not None:
        _check_joined(before, signature.joined, f"the job of task {before.name}", then)


def check_step(task: Task[..., Any], before: Sequence[tuple[str, Task[..., Any]]]) -> None:
    """Raise `BadOption` if ``task`` cannot join the steps before it, (name, task) each."""
    for (name, source), joined in zip(before, task.signature.joins, strict=False):
        _check_joined(source, joined, f"step {name!r}", task)


def check_mapped(source: Task[..., Any], name: str, many: bool, task: Task[..., Any]) -> None:
    """Raise `BadOption` or `BadPayload` if ``task`` cannot be mapped over the step ``name``: over the results of its
    parts (``many``), or over the list that its only call returns."""
    task.signature.require_one("as a map needs")
    given, taken = _kind(source.signature.result.annotation), _first(task)
    if many:
        if not _fits(given, taken):
            raise BadOption(f"step {name!r} returns {_result(source)}, and task {task.name} takes {_argument(task)}")
        return
    lists = [one for one in _members(given) if _name(one) in ("list", None)]
    if not lists:
        raise BadOption(
            f"step {name!r} returns {_result(source)}, and there is nothing in it to map task {task.name} over: let "
            "it return a list"
        )
    if not any(item is None or _fits(item, taken) for one in lists for item in _items(one)):
        raise BadOption(
            f"step {name!r} returns {_result(source)}, and task {task.name}, which is mapped over it, takes "
            f"{_argument(task)}"
        )


def check_undo(undo: Task[..., Any], of: Task[..., Any]) -> None:
    """Raise `BadOption` or `BadPayload` if ``undo`` cannot take what ``of`` returns."""
    undo.signature.require_one("as an undo needs, which gets the result that it takes back")
    if not _fits(_kind(of.signature.result.annotation), _first(undo)):
        raise BadOption(f"task {of.name} returns {_result(of)}, and undo={undo.name} takes {_argument(undo)}")


def _check_joined(source: Task[..., Any], joined: Any, what: str, task: Task[..., Any]) -> None:
    if not _fits(_kind(source.signature.result.annotation), _kind(joined_type(joined))):
        raise BadOption(f"{what} leaves {_result(source)}, and task {task.name} joins {type_name(joined_type(joined))}")


def _fits(given: kinds.Type | None, taken: kinds.Type | None) -> bool:
    """Whether some value of the one may be read as the other."""
    return any(_may(one, other) for one in _members(given) for other in _members(taken))


def _may(given: kinds.Type | None, taken: kinds.Type | None) -> bool:
    one, other = _name(given), _name(taken)
    if one is None or other is None:
        return True
    if one != other:
        return (one, other) == ("int", "float")
    if one == "list":
        return all(any(_fits(item, may) for may in _items(taken)) for item in _items(given))
    if isinstance(given, kinds.DictType) and isinstance(taken, kinds.DictType):
        return _fits(given.value_type, taken.value_type)
    return True


def _kind(annotation: Any) -> kinds.Type | None:
    try:
        return kinds.type_info(annotation)
    except Exception:  # a kind of annotation that msgspec cannot tell of
        return None


def _members(kind: kinds.Type | None) -> Sequence[kinds.Type | None]:
    return kind.types if isinstance(kind, kinds.UnionType) else (kind,)


def _name(kind: kinds.Type | None) -> str | None:
    if isinstance(kind, kinds.StructType):  # of a `FanOut`, the results are those of another task
        return None if kind.array_like or hasattr(kind.cls, "__fanin_fan_out__") else "object"
    return next((name for types, name in _NAMES if isinstance(kind, types)), None)


def _items(kind: kinds.Type | None) -> Sequence[kinds.Type | None]:
    if isinstance(kind, kinds.TupleType):
        return kind.item_types
    return (kind.item_type,) if isinstance(kind, _LISTS) else (None,)


def _first(task: Task[..., Any]) -> kinds.Type | None:
    return None if task.signature.first is None else _kind(task.signature.first.annotation)


def _result(task: Task[..., Any]) -> str:
    return type_name(task.signature.result.annotation)


def _argument(task: Task[..., Any]) -> str:
    assert task.signature.first is not None
    return type_name(task.signature.first.annotation)
