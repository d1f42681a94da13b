"""Frozen dataclasses as JSON and back, by their annotations: for what only this program reads. Unlike `codec`, floats
that are not finite stay what they are."""

from __future__ import annotations

import functools
import json
import types
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")


def dumps(value: Any) -> str:
    """Dataclasses, mappings, tuples and lists of text, numbers and None, in any depth."""
    return json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":"))


def loads(text: str | bytes, kind: type[T]) -> T:
    """The other way round. Raises ValueError, TypeError or KeyError where it is not what `dumps` made of a `kind`."""
    try:
        found = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return cast(T, _typed(found, kind))


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise TypeError(f"{type(value).__name__} cannot be kept")


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _typed(value: Any, kind: Any) -> Any:
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        (one,) = [part for part in parts if part is not type(None)]
        return _typed(value, one)
    if origin is Literal:
        if value not in parts:
            raise ValueError(f"{value!r} is none of {parts}")
        return value
    if origin is tuple:
        _must_be(value, list)
        if parts[-1] is Ellipsis:
            return tuple(_typed(item, parts[0]) for item in value)
        return tuple(_typed(item, part) for item, part in zip(value, parts, strict=True))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        _must_be(value, dict)
        return {key: _typed(item, parts[1]) for key, item in value.items()}
    if isinstance(origin, type) and issubclass(origin, Sequence):
        _must_be(value, list)
        return [_typed(item, parts[0]) for item in value]
    if is_dataclass(kind):
        hints = _hints(cast(type, kind))
        _must_be(value, dict)
        if value.keys() != hints.keys():
            raise ValueError(f"not the fields of {kind}")
        return cast(Any, kind)(**{name: _typed(value[name], hint) for name, hint in hints.items()})
    if kind is float and type(value) is int:
        return value  # as it was computed
    _must_be(value, kind)
    return value


def _must_be(value: Any, kind: Any) -> None:
    if type(value) is not kind:
        raise TypeError(f"{value!r} is no {kind}")
