"""A table of a TOML file whose keys are asked for one by one, each mistake named by its path. Pure."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from typing import Any

from ..errors import UsageError

LARGEST = 1e15  # of any number; a larger one is a slip of the pen
_KINDS = {
    bool: "true or false",
    str: "a text",
    int: "a whole number",
    float: "a number",
    list: "a list",
    dict: "a table",
}


class Table:
    """`path` is the keys that lead here, empty at the top; `where` is the file, for the words of a mistake."""

    def __init__(self, values: Mapping[str, Any], path: str, where: str) -> None:
        self.values, self.path, self.where = values, path, where
        self._known: list[str] = []

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def at(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def wrong(self, key: str, what: str, remedy: str) -> UsageError:
        return UsageError(f"{self.where}: {self.at(key)} {what}", remedy)

    def text(self, key: str, default: str | None = None) -> str:
        found = self._value(key, default, (str,))
        if not isinstance(found, str) or (default is None and not found.strip()):
            raise self.wrong(key, "is empty", f'write {self.at(key)} = "…"')
        return found

    def texts(self, key: str) -> tuple[str, ...]:
        found = self._value(key, [], (str, list))
        texts = [found] if isinstance(found, str) else found
        if not all(isinstance(text, str) for text in texts):
            raise self.wrong(key, "is not a list of texts", f'write {self.at(key)} = ["…", "…"]')
        return tuple(texts)

    def number(
        self,
        key: str,
        default: float | None = None,
        *,
        above: float | None = None,
        least: float = -math.inf,
        most: float = math.inf,
    ) -> float:
        """A number, greater than `above`, not below `least` and not beyond `most`."""
        found = self._value(key, default, (int, float))
        low = -math.inf if above is None else above
        if not (-LARGEST <= found <= LARGEST and low < found <= most and least <= found):
            raise self.wrong(
                key, f"is {str(found)[:24]}, not a number{_between(above, least, most)}", "give one that is"
            )
        return float(found)

    def whole(self, key: str, default: int | None = None, *, least: int = 1, most: int = 1_000_000_000) -> int:
        found = self._value(key, default, (int,))
        if not least <= found <= most:
            raise self.wrong(
                key, f"is {str(found)[:24]}, not a whole number from {least:,} to {most:,}", "give one that is"
            )
        return int(found)

    def numbers(self, key: str, *, whole: bool = False) -> tuple[Any, ...]:
        found = self._value(key, None, (list,))
        kinds = (int,) if whole else (int, float)
        bad = next((i for i, n in enumerate(found) if not isinstance(n, kinds) or isinstance(n, bool)), None)
        if bad is None:
            bad = next((i for i, n in enumerate(found) if not -LARGEST <= n <= LARGEST), None)
        if bad is not None:
            what = "a whole number" if whole else "a number"
            raise self.wrong(f"{key}[{bad}]", f"is {str(found[bad])[:24]}, not {what}", f"give a list of {what[2:]}s")
        return tuple(found)

    def table(self, key: str) -> Table:
        return Table(self._value(key, None, (dict,)), self.at(key), self.where)

    def tables(self, key: str) -> list[Table]:
        found = self._value(key, None, (list,))
        bad = next((i for i, one in enumerate(found) if not isinstance(one, dict)), None)
        if bad is not None:
            raise self.wrong(f"{key}[{bad}]", "is not a table", "write each as { kind = …, … }")
        return [Table(one, f"{self.at(key)}[{i}]", self.where) for i, one in enumerate(found)]

    def lists(self, key: str) -> list[Any]:
        found: list[Any] = self._value(key, None, (list,))
        return found

    def done(self) -> None:
        """Raise UsageError where a key is left that nobody asked for."""
        left = [key for key in self.values if key not in self._known]
        if left:
            close = difflib.get_close_matches(left[0], self._known, n=1)
            known = ", ".join(dict.fromkeys(self._known))
            remedy = f"did you mean {self.at(close[0])}?" if close else f"the keys here are {known}"
            raise UsageError(f"{self.where}: there is no key {self.at(left[0])}", remedy)

    def _value(self, key: str, default: Any, kinds: tuple[type, ...]) -> Any:
        self._known.append(key)
        if key not in self.values:
            if default is None:
                raise UsageError(f"{self.where}: {self.at(key)} is missing", f"add it: {_KINDS[kinds[-1]]}")
            return default
        found = self.values[key]
        if not isinstance(found, kinds) or (isinstance(found, bool) and bool not in kinds):
            given = next((name for kind, name in _KINDS.items() if isinstance(found, kind)), type(found).__name__)
            raise self.wrong(key, f"is {given}, not {_KINDS[kinds[-1]]}", f"give {_KINDS[kinds[-1]]}")
        return found


def _between(above: float | None, least: float, most: float) -> str:
    parts = [f"above {above:g}"] if above is not None else []
    parts += [f"from {least:g}"] if not math.isinf(least) else []
    parts += [f"up to {most:g}"] if not math.isinf(most) else []
    return " " + " and ".join(parts) if parts else ""
