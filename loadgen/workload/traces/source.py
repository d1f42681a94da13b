"""The lines of a trace file: of any size, plain or gzipped, read as they are asked for. All that can be wrong with a
file is told as a UsageError with the line."""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, cast

import orjson

from ...errors import UsageError

LINE_BYTES = 64 << 20
BLOCK = 256  # rows converted together: half a millisecond
READ_BYTES = 1 << 14, 1 << 18  # read at once: of the first lines few, as often no more are asked for
GIVE = "give a trace: a CSV, JSON Lines or JSON file, also gzipped (docs/traces.md lists the formats)"
_PACKED = {b"PK\x03\x04": "zip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"PAR1": "Parquet"}


class Source:
    """A file by its path; every method opens it anew."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fault(self, line: int, reason: str, remedy: str = GIVE) -> UsageError:
        return UsageError(f"line {line:,} of {self.path}: {reason}", remedy)

    def start(self) -> bytes:
        """Its first bytes that are no space. Raises UsageError for an empty file."""
        try:
            with self._opened() as file:
                start = file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise self.fault(1, f"the gzip file breaks off ({error})", "download it again") from None
        except OSError as error:
            raise self._unreadable(error) from None
        if not start and next(self.lines(), None) is None:
            raise UsageError(f"{self.path} is empty", GIVE)
        if b"\0" in start:
            raise UsageError(f"{self.path} is not UTF-8 text: it holds NULs (is it UTF-16?)", GIVE)
        return start

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """(number from 1, line without its end) of every line that is not blank."""
        for number, lines in self._blocks():
            for place, line in enumerate(lines, number):
                if line and not line.isspace():  # tabs at its ends stay: they are cells that are empty
                    yield place, line.rstrip(b"\r")

    def _blocks(self) -> Iterator[tuple[int, list[bytes]]]:
        """(number of the first, lines without their LF): as many as are read at once, which is cheaper than one by
        one."""
        number, size = 1, READ_BYTES[0]
        try:
            with self._opened() as file:
                while data := file.read(size):
                    size = READ_BYTES[1]
                    if not data.endswith(b"\n"):
                        data += file.readline(LINE_BYTES + 1)
                    lines = data.removeprefix(b"\xef\xbb\xbf" if number == 1 else b"").split(b"\n")
                    if len(lines[-1]) > LINE_BYTES:
                        raise self.fault(number + len(lines) - 1, f"it is longer than {LINE_BYTES >> 20} MiB")
                    if not lines[-1]:
                        lines.pop()
                    yield number, lines
                    number += len(lines)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise self.fault(number, f"the gzip file breaks off after it ({error})", "download it again") from None
        except OSError as error:
            raise self._unreadable(error) from None

    def objects(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """(line, object) of JSON Lines."""
        for number, line in self.lines():
            try:
                value = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                raise self.fault(number, f"it is not JSON ({error.msg})") from None
            if not isinstance(value, dict):
                raise self.fault(number, "it is not a JSON object")
            yield number, value

    def cells(self) -> Iterator[list[tuple[int, list[str]]]]:
        """Blocks of (line, cells) of a CSV, its header among them. Up to the first quote its lines are its rows."""
        delimiter = self._delimiter()
        text = _Text(self, self.lines())
        while lines := list(islice(text.lines, BLOCK)):
            if any(b'"' in line or b"\r" in line for _, line in lines):
                yield from self._quoted(_Text(self, chain(lines, text.lines)), delimiter)
                return
            try:
                yield [(number, line.decode().split(delimiter)) for number, line in lines]
            except UnicodeDecodeError:
                list(_Text(self, iter(lines)))  # says where
                raise

    def _quoted(self, text: _Text, delimiter: str) -> Iterator[list[tuple[int, list[str]]]]:
        reader = csv.reader(text, delimiter=delimiter)
        block: list[tuple[int, list[str]]] = []
        try:
            for row in reader:
                block.append((text.number, row))
                if len(block) == BLOCK:
                    yield block
                    block = []
        except csv.Error as error:
            raise self.fault(text.number, f"it is no line of a CSV ({error})") from None
        if block:
            yield block

    def document(self) -> Iterator[tuple[int, Any]]:
        """(line it begins in, element) of a file that is one JSON array, element by element; else the one value."""
        decoder = json.JSONDecoder()
        line, array = 1, False
        text = ""
        chunks = self._chunks()
        at, more, started = 0, True, False
        while True:
            while at < len(text) and text[at] in " \t\r\n,":
                line += text[at] == "\n"
                at += 1
            if at == len(text):
                text, at = next(chunks, ""), 0
                if not text:
                    if array or not started:
                        raise self.fault(line, "the file ends in the middle of its JSON array" if started else "empty")
                    return
                continue
            if not started:
                started = True
                if text[at] == "[":
                    array, at = True, at + 1
                    continue
            if array and text[at] == "]":
                return
            try:
                value, end = decoder.raw_decode(text, at)
                # A number could go on in the next chunk; nothing here is one.
            except RecursionError:
                raise self.fault(line, "it is nested too deeply") from None
            except ValueError as error:
                # Doubling what is read before each try keeps the whole linear.
                wanted = max(1 << 20, len(text) - at)
                parts = [text[at:]]
                got = 0
                while got < wanted and (chunk := next(chunks, "")):
                    parts.append(chunk)
                    got += len(chunk)
                text, at = "".join(parts), 0
                more = got > 0
                if not more or len(text) > LINE_BYTES:
                    said = getattr(error, "msg", str(error))
                    near = line + text.count("\n", 0, getattr(error, "pos", 0) if not more else 0)
                    raise self.fault(near, f"it is not JSON, or breaks off ({said})") from None
                continue
            yield line, value
            line += text.count("\n", at, end)
            at = end
            if not array:
                return

    def _chunks(self) -> Iterator[str]:
        try:
            with self._opened() as file, io.TextIOWrapper(file, encoding="utf-8-sig") as text:
                while chunk := text.read(1 << 18):
                    yield chunk
        except UnicodeDecodeError as error:
            raise UsageError(f"{self.path} is not UTF-8 text ({error.reason})", GIVE) from None
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise UsageError(f"the gzip file {self.path} breaks off ({error})", "download it again") from None
        except OSError as error:
            raise self._unreadable(error) from None

    def _opened(self) -> IO[bytes]:
        try:
            if self.path.exists() and not self.path.is_file() and not self.path.is_dir():
                raise UsageError(f"{self.path} is no file: a trace is read more than once", "save it to a file")
            file = self.path.open("rb")
        except ValueError as error:
            raise UsageError(f"the trace {str(self.path)[:200]!r} cannot be read: {error}", GIVE) from None
        except OSError as error:
            raise self._unreadable(error) from None
        start = file.read(8)
        file.seek(0)
        if start.startswith(b"\x1f\x8b"):
            file.close()
            return cast(IO[bytes], gzip.open(self.path))
        packed = next((name for magic, name in _PACKED.items() if start.startswith(magic)), None)
        if packed is not None:
            file.close()
            raise UsageError(f"{self.path} is a {packed} file", "unpack it, or convert it to CSV or JSON Lines")
        return file

    def _unreadable(self, error: OSError) -> UsageError:
        return UsageError(f"the trace {self.path} cannot be read: {error.strerror or error}", GIVE)

    def _delimiter(self) -> str:
        first = next((line for _, line in self.lines()), b"")
        return max(",;\t", key=lambda one: first.count(one.encode()))


class _Text(Iterator[str]):
    """Numbered lines of a source as text; `number` is that of the latest."""

    def __init__(self, source: Source, lines: Iterator[tuple[int, bytes]]) -> None:
        self._source, self.lines, self.number = source, lines, 0

    def __next__(self) -> str:
        self.number, line = next(self.lines)
        try:
            return line.decode("utf-8") + "\n"
        except UnicodeDecodeError as error:
            raise self._source.fault(self.number, f"it is not UTF-8 text ({error.reason})") from None
