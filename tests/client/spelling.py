"""How one server spells JSON and server-sent events: white space, escapes, numbers, the order of keys, line ends."""

from __future__ import annotations

import json
from random import Random
from typing import Any

COMMENTS = [
    "",
    ":",
    ": ping",
    ":data: {",
    ": OPENROUTER PROCESSING",
    "id: 7",
    "id",
    "retry: 100",
    "unknown: x",
    "datax: 1",
]


class Habits:
    """How one server spells JSON and events."""

    def __init__(self, r: Random) -> None:
        self.r = r
        self.gap, self.colon = r.choice([("", ""), (" ", " "), ("", " "), (" ", ""), ("\n  ", ": "), ("\t", "\n")])
        self.colon = self.colon if ":" not in self.colon else " "
        self.escape = r.choice(["none", "ascii", "some", "slash"])
        self.eols = r.choice([["\n"], ["\n"], ["\r\n"], ["\r"], ["\n", "\r\n", "\r"]])
        self.prefix = r.choice(["data: ", "data: ", "data:", "event: chunk\0data: ", "data: \0data:"])
        self.shuffle = r.choice([0.0, 0.0, 0.1, 1.0])
        self.noise = r.choice([0.0, 0.0, 0.1, 0.5])
        self.numbers = r.choice([0.0, 0.0, 0.5])
        self.orders: dict[frozenset[str], list[str]] = {}
        self.after_cr = False

    # JSON

    def json(self, value: Any) -> str:
        if isinstance(value, bool) or value is None:
            return json.dumps(value)
        if isinstance(value, int):
            return self.number(value)
        if isinstance(value, float):
            return repr(value)
        if isinstance(value, str):
            return self.string(value)
        if isinstance(value, list):
            inner = [self.json(one) for one in value]
            return "[" + ("," + self.gap).join(inner) + "]"
        return (
            "{"
            + ("," + self.gap).join(f"{self.string(k)}:{self.colon}{self.json(value[k])}" for k in self.keys(value))
            + "}"
        )

    def keys(self, value: dict[str, Any]) -> list[str]:
        order = self.orders.get(frozenset(value))
        if order is None or self.r.random() < self.shuffle:
            order = list(value)
            if self.shuffle:
                self.r.shuffle(order)
            self.orders[frozenset(value)] = order
        return order

    def number(self, value: int) -> str:
        if self.r.random() >= self.numbers:
            return str(value)
        return self.r.choice([f"{value}.0", f"{value}e0", f"{value}.00E+00", f"{value * 10}e-1", f"{value / 10}e1"])

    def string(self, text: str) -> str:
        out = ['"']
        for char in text:
            code = ord(char)
            if char in '"\\':
                out.append("\\" + char)
            elif code < 0x20:
                short = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\x08": "\\b", "\x0c": "\\f"}.get(char)
                out.append(short if short and self.escape != "some" else f"\\u{code:04X}")
            elif 0xD800 <= code < 0xE000:
                out.append(f"\\u{code:04x}")  # half a pair has no UTF-8
            elif char == "/" and self.escape == "slash":
                out.append("\\/")
            elif code > 0x7E and (self.escape == "ascii" or (self.escape == "some" and self.r.random() < 0.5)):
                out.append(json.dumps(char)[1:-1])
            else:
                out.append(char)
        out.append('"')
        return "".join(out)

    # events

    def line(self, text: str) -> str:
        """One line with its end; never one that a CR before it would swallow."""
        eol = self.r.choice(self.eols)
        if eol == "\n" and self.after_cr and not text:
            eol = "\r"
        self.after_cr = eol == "\r"
        return text + eol

    def event(self, data: str, name: str | None = None, *, blank: bool = True) -> bytes:
        """One event; where its JSON holds line breaks, of several `data` lines."""
        lines: list[str] = []
        prefix = self.prefix
        if name is None and "\0" in prefix and prefix.startswith("event"):
            lines.append("event: chunk")
        if name is not None:
            lines.append(f"event: {name}")
        parts = data.split("\n")
        if prefix.startswith("data: \0") and data[:1] in "{[" and data != "[DONE]":
            parts.insert(0, "")
        if self.r.random() < self.noise:
            parts[-1] += self.r.choice([" ", "  ", "\t"])
        lead = "data:" if prefix == "data:" else "data: "
        lines += [lead + part for part in parts]
        if self.r.random() < self.noise:
            lines.insert(self.r.randrange(len(lines) + 1), self.r.choice(COMMENTS[1:]))
        if blank:
            lines.append("")
            if self.r.random() < self.noise:
                lines.append("")
        return "".join(map(self.line, lines)).encode()

    def between(self) -> bytes:
        """A block that is no event."""
        line = self.r.choice(COMMENTS)
        return "".join(map(self.line, [line, ""] if line else [""])).encode()
