"""Arguments and results as JSON by the handler's annotations, refused where something would be lost."""

from __future__ import annotations

import dataclasses
import inspect
import math
import os
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from fanin.domain import limits
from fanin.domain.errors import BadPayload, shown

_ANYTHING = (Any, object, inspect.Parameter.empty)
_PLAIN = (*_ANYTHING, list, dict, tuple)
_REFUSED = (TypeError, ValueError, OverflowError, RecursionError, AttributeError)


def encode(value: Any, what: str, limit: int) -> str:
    """``value`` as JSON text of at most ``limit`` bytes. Raises `BadPayload` naming ``what``."""
    try:
        data = msgspec.json.encode(value, enc_hook=_to_json)
        text = data.decode()
    except _REFUSED as problem:
        raise BadPayload(f"{what} cannot be stored as JSON: {_said(problem)}") from problem
    if len(data) > limit:
        raise BadPayload(
            f"{what} has {len(data)} bytes as JSON, the limit is {limit}: put it in a file or object store "
            "and pass its path"
        )
    if "null" in text:
        _refuse_nan(value, what)
    return text


def encode_plain(value: Any, what: str, limit: int) -> str:
    """`encode` for what comes back as plain JSON values: others are refused."""
    text = encode(value, what, limit)
    try:
        _refuse_lossy(value, what, "convert it to plain JSON first, so that it comes back as it went")
    except RecursionError:
        raise BadPayload(f"{what} is nested too deeply: put it in a file and keep its path") from None
    return text


_lines = msgspec.json.Encoder()
_SCALARS = frozenset([int, float, bool, type(None)])
PLAIN_CHARS = 500
PLAIN_RUN = 500
"""So many plain values are encoded at once, texts among them up to so many characters."""


class Codec:
    """JSON to and from one annotated type. ``Any`` and missing annotations take plain JSON values only."""

    def __init__(self, annotation: Any, what: str) -> None:
        self.what = what
        self.plain = annotation in _PLAIN
        self.annotation = Any if annotation in (inspect.Parameter.empty, object) else annotation
        try:
            self._decoder = msgspec.json.Decoder(self.annotation, dec_hook=_from_json)
        except _REFUSED as problem:
            raise BadPayload(
                f"{what} is annotated {annotation!r}, which cannot be read from JSON: {_said(problem)}"
            ) from None

    def encode(self, value: Any, limit: int, what: str | None = None) -> str:
        """Checked by decoding it again: a wrong type is found here, not in the worker."""
        what = what or self.what
        try:
            text = encode(value, what, limit)
            if self.plain:
                _refuse_lossy(value, what)
            else:
                _refuse_changed(value, self.decode(text, what), what)
        except RecursionError:
            raise BadPayload(f"{what} is nested too deeply: put it in a file and pass its path") from None
        return text

    def encode_plain(self, values: list[Any]) -> list[str] | None:
        """The payloads ``[value]`` of numbers, short texts and None. None if one of them cannot be sent, or may not be.

        A value of these types is sent if it can be read again.
        """
        try:
            data = _lines.encode_lines(values)
            if not self.plain:
                self._decoder.decode_lines(data)
            if b"null" in data and not all(map(_is_finite, values)):
                return None
            return [f"[{text}]" for text in data.decode().split("\n")[:-1]]
        except (msgspec.DecodeError, *_REFUSED):
            return None

    def decode(self, text: str, what: str | None = None) -> Any:
        try:
            return self._decoder.decode(text)
        except (msgspec.DecodeError, *_REFUSED) as problem:
            raise BadPayload(
                f"{what or self.what} does not fit {type_name(self.annotation)}: {_said(problem)}"
            ) from problem


class Signature:
    """The payload of one handler: ``[item]`` for one positional argument, else an object with args and kwargs."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self.name = name
        self._signature = inspect.signature(function)
        hints = self._hints = {name: _without_none(hint) for name, hint in annotations_of(function).items()}
        self._parameters = {
            p.name: Codec(hints.get(p.name, inspect.Parameter.empty), f"argument {p.name!r} of task {name}")
            for p in self._signature.parameters.values()
            if not _is_joined(hints.get(p.name))
        }
        self.first = next(iter(self._parameters.values()), None)
        self.joins = [hint for name, hint in hints.items() if name != "return" and _is_joined(hint)]
        self.joined = next(iter(self.joins), None)
        self.result = Codec(_result_of(hints), f"the result of task {name}")
        self._named = Codec(Any, f"the arguments of task {name}")
        try:
            self._signature.bind(None)
            self.takes_one = True
        except TypeError:
            self.takes_one = False
        heads = [hints.get(name, Any) for name in self._signature.parameters][:1]
        self.joins_one = self.takes_one and any(self.joins == [head] or head in _ANYTHING for head in heads)
        """Whether its one argument may be a `Joined`."""

    def encode_item(self, item: Any, number: int) -> str:
        """The payload of part ``number`` of a map."""
        first = self.require_one("as a map needs")
        return "[" + first.encode(item, limits.PAYLOAD_BYTES, f"part {number}: {first.what}") + "]"

    def encode_items(self, items: Iterable[Any]) -> Iterator[str]:
        """`encode_item` for each. Reads a little ahead: plain values are encoded and checked many at once."""
        return self._encode_items(check_items(items))

    def _encode_items(self, items: Iterable[Any]) -> Iterator[str]:
        number = 0
        for batch, plain in _plain_runs(items):
            texts = self.require_one("as a map needs").encode_plain(batch) if plain else None
            if texts is not None:
                yield from texts
            else:  # one by one, to name the one that cannot be sent
                for n, item in enumerate(batch, number):
                    yield self.encode_item(item, n)
            number += len(batch)

    def check_item(self, text: str) -> None:
        """Raise `BadPayload` if the handler cannot take the one argument ``text`` (JSON)."""
        self.require_one("the event").decode(text)

    def require_one(self, why: str) -> Codec:
        """That of the one argument. Raises `BadPayload` if the handler does not take exactly one, or a `Joined`."""
        if self.first is None or self.joins or not self.takes_one:
            raise BadPayload(f"task {self.name}{self} does not take exactly one argument, {why}")
        return self.first

    def __str__(self) -> str:
        return re.sub(r"\bfanin\.runtime\.\w+\.", "fanin.", str(self._signature))

    def encode_call(self, args: Iterable[Any], kwargs: Mapping[str, Any]) -> str:
        """The payload of a single call. Raises `BadPayload` if the arguments do not fit the signature."""
        given = tuple(check_items(args, "args"))
        return encode({"call": self._named_values(given, kwargs, self._signature)}, *self._what)

    def encode_rest(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """The arguments beside the `Joined` ones, by name. Raises `BadPayload` if they do not fit the signature."""
        rest = [p for p in self._signature.parameters.values() if p.name in self._parameters]
        return encode(self._named_values(args, kwargs, self._signature.replace(parameters=rest)), *self._what)

    @property
    def _what(self) -> tuple[str, int]:
        return f"the arguments of task {self.name}", limits.PAYLOAD_BYTES

    def _named_values(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], signature: inspect.Signature
    ) -> dict[str, msgspec.Raw]:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as problem:
            raise BadPayload(f"task {self.name}{self}: {problem}") from None
        named = {}
        for name, value in bound.arguments.items():
            codec = self._parameters.get(name, self._named)
            kind = self._signature.parameters[name].kind
            if kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
                codec = self._named
            named[name] = msgspec.Raw(codec.encode(value, limits.PAYLOAD_BYTES).encode())
        return named

    def decode(self, payload: str, joined: Callable[[dict[str, Any], Any], Any]) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword arguments. ``joined`` makes the argument of a successor."""
        if payload.startswith("["):
            assert self.first is not None
            return [self.first.decode(payload[1:-1])], {}
        fields = msgspec.json.decode(payload, type=dict[str, msgspec.Raw])
        if "joined" in fields:
            return [joined(msgspec.json.decode(fields["joined"]), self.joined)], {}
        facts = iter(msgspec.json.decode(fields["joins"]) if "joins" in fields else ())
        call = msgspec.json.decode(fields["call"], type=dict[str, msgspec.Raw])
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for name, parameter in self._signature.parameters.items():
            if name not in self._parameters:  # a step of a flow joins the steps before it, in their order
                one = next(facts, None)
                value = None if one is None else joined(one, self._hints[name])
                if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                    kwargs[name] = value
                else:
                    args.append(value)
                continue
            if name not in call:
                continue
            text = bytes(call[name]).decode()
            if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                args += self._named.decode(text)
            elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
                kwargs.update(self._named.decode(text))
            elif parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                kwargs[name] = self._parameters[name].decode(text)
            else:
                args.append(self._parameters[name].decode(text))
        return args, kwargs


def check_items(items: Iterable[Any], name: str = "items") -> Iterable[Any]:
    """The same items. Raises `BadPayload` for what is no iterable, and for one that is rather a single value."""
    if not isinstance(items, Iterable):
        raise BadPayload(f"{name}={shown(items)}: give a list or another iterable, such as [{shown(items)}] for one")
    if isinstance(items, str | bytes | bytearray):
        pieces = "characters" if isinstance(items, str) else "bytes"
    elif isinstance(items, Mapping):
        pieces = "keys"
    else:
        return items
    raise BadPayload(
        f"{name}={shown(items)} would be taken by its {pieces}: give it in a list, [{shown(items)}], if it is one, or "
        f"list(…) if its {pieces} are meant"
    )


def _plain_runs(items: Iterable[Any]) -> Iterator[tuple[list[Any], bool]]:
    """The items in short runs, all plain values or none of them; nothing large is read ahead."""
    run: list[Any] = []
    for item in items:
        if type(item) in _SCALARS or (type(item) is str and len(item) <= PLAIN_CHARS):
            run.append(item)
            if len(run) == PLAIN_RUN:
                yield run, True
                run = []
        else:
            if run:
                yield run, True
                run = []
            yield [item], False
    if run:
        yield run, True


def annotations_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The evaluated annotations; an unresolvable one is an error at the decoration, not in the worker."""
    try:
        return typing.get_type_hints(function, include_extras=True)
    except NameError as problem:
        name = getattr(function, "__qualname__", function)
        raise BadPayload(f"the annotations of {name} cannot be resolved: {problem}") from None


def _result_of(hints: dict[str, Any]) -> Any:
    """A handler that returns a `FanOut` says nothing about the values that come of it."""
    annotation = hints.get("return", inspect.Parameter.empty)
    return Any if getattr(annotation, "__fanin_fan_out__", False) else annotation


def joined_type(annotation: Any) -> Any:
    """That of the results, of a `Joined` as it is annotated."""
    arguments = typing.get_args(annotation)
    return arguments[0] if arguments and not isinstance(arguments[0], typing.TypeVar) else Any


def _without_none(annotation: Any) -> Any:
    """A step that was skipped leaves None instead of a `Joined`: ``Joined[int] | None`` says so, and is no other."""
    members = typing.get_args(annotation) if typing.get_origin(annotation) in (typing.Union, types.UnionType) else ()
    joined = [member for member in members if _is_joined(member)]
    return joined[0] if len(joined) == 1 and set(members) - set(joined) == {type(None)} else annotation


def _is_joined(annotation: Any) -> bool:
    origin = typing.get_origin(annotation) or annotation
    return getattr(origin, "__fanin_joined__", False) is True


def _to_json(value: Any) -> Any:
    if isinstance(value, str):  # of a class of its own, such as `Part.idempotency_key`
        return str.__str__(value)
    dump = getattr(value, "model_dump", None)  # pydantic, when the user has it
    if callable(dump):
        return dump(mode="json")
    path = getattr(value, "__fspath__", None)
    if callable(path):
        return path()
    raise TypeError(f"{type(value).__qualname__} is not a type that fanin can store")


def _from_json(annotation: type, value: Any) -> Any:
    validate = getattr(annotation, "model_validate", None)
    if callable(validate):
        return validate(value)
    if annotation is object:
        return value
    if hasattr(annotation, "__fspath__"):
        return annotation(value)
    raise TypeError(f"{type_name(annotation)} is not a type that fanin can read")


_ANNOTATE = "annotate the handler with its type, so that it comes back as it went"


def _refuse_lossy(value: Any, what: str, advice: str = _ANNOTATE) -> None:
    """Without an annotation nothing says how to bring back a date, bytes or a set: take plain JSON values only."""
    if value is None or isinstance(value, (str, bool, int, float)):
        return
    if isinstance(value, (list, tuple)):
        for item in value:
            _refuse_lossy(item, what, advice)
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise BadPayload(
                    f"{what} has the key {shown(key)}: without an annotation the keys of a dict must be str"
                )
            _refuse_lossy(item, what, advice)
    else:
        raise BadPayload(f"{what} holds a {type(value).__qualname__}: {advice}")


def _refuse_changed(sent: Any, came: Any, what: str) -> None:
    """Compare what was sent with what will arrive: ``str`` takes a date, and ``dict[str, Any]`` bytes, as JSON text."""
    if came is None or isinstance(came, (str, int, float)):
        if sent is None or isinstance(sent, (str, int, float)) or sent == came:
            return
        if isinstance(came, str) and isinstance(sent, os.PathLike):
            return
    elif isinstance(came, (list, tuple)):
        if isinstance(sent, (list, tuple)):
            for before, after in zip(sent, came, strict=True):
                _refuse_changed(before, after, what)
            return
    elif isinstance(came, dict):
        if isinstance(sent, dict) and list(sent) == list(came):
            for before, after in zip(sent.values(), came.values(), strict=True):
                _refuse_changed(before, after, what)
            return
    elif type(sent) is type(came):
        for name in _fields(came):
            _refuse_changed(getattr(sent, name), getattr(came, name), what)
        return
    elif not isinstance(sent, type(came)):  # a dict for a dataclass, a list for a set: read, not cut down
        return
    raise BadPayload(
        f"{what} holds a {type(sent).__qualname__} that would arrive as {type(came).__qualname__} {_short(came)}: "
        "annotate the handler with its type, or convert it first"
    )


def _fields(value: Any) -> Iterable[str]:
    if isinstance(value, msgspec.Struct):
        return value.__struct_fields__
    if dataclasses.is_dataclass(value):
        return [field.name for field in dataclasses.fields(value)]
    return ()


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _refuse_nan(value: Any, what: str) -> None:
    """JSON has no NaN and no infinity; they would silently become null."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise BadPayload(f"{what} holds {value}, which JSON cannot carry: send None or a text instead")
    elif isinstance(value, dict):
        for item in value.values():
            _refuse_nan(item, what)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            _refuse_nan(item, what)
    elif value is not None and not isinstance(value, (str, int, bool, bytes, msgspec.Raw)):
        plain = msgspec.to_builtins(value, enc_hook=_to_json)
        if type(plain) is not type(value):
            _refuse_nan(plain, what)


def _is_finite(value: Any) -> bool:
    return type(value) is not float or math.isfinite(value)


def _said(problem: BaseException) -> str:
    return (str(problem) or type(problem).__name__).splitlines()[0][:300]


def type_name(annotation: Any) -> str:
    """As a person would write it."""
    plain = typing.get_origin(annotation) is None and getattr(annotation, "__qualname__", None)
    return plain or str(annotation).removeprefix("typing.")
