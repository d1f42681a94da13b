"""The lines of a trace file: of any size, plain or gzipped, read as they are asked for. All that can be wrong with a
file is told as a UsageError with the line."""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

import orjson

from ...errors import UsageError

LINE_BYTES = 64 << 20
BLOCK = 256  # rows converted together: half a millisecond
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
        return start

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """(number from 1, line without its end) of every line that is not blank."""
        number = 0
        try:
            with self._opened() as file:
                while raw := file.readline(LINE_BYTES + 1):
                    number += 1
                    if number == 1:
                        raw = raw.removeprefix(b"\xef\xbb\xbf")
                    if len(raw) > LINE_BYTES:
                        raise self.fault(number, f"it is longer than {LINE_BYTES >> 20} MiB")
                    if raw.strip():  # tabs at its ends stay: they are cells that are empty
                        yield number, raw.rstrip(b"\r\n")
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise self.fault(number + 1, f"the gzip file breaks off ({error})", "download it again") from None
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
        """Blocks of (line, cells) of a CSV, its header among them."""
        state = _Text(self)
        reader: Any = csv.reader(state, delimiter=self._delimiter())
        block: list[tuple[int, list[str]]] = []
        try:
            for row in reader:
                block.append((state.number, row))
                if len(block) == BLOCK:
                    yield block
                    block = []
        except csv.Error as error:
            raise self.fault(state.number, f"it is no line of a CSV ({error})") from None
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
    """The lines of a source as text; `number` is that of the latest."""

    def __init__(self, source: Source) -> None:
        self._source, self._lines, self.number = source, source.lines(), 0

    def __next__(self) -> str:
        self.number, line = next(self._lines)
        try:
            return line.decode("utf-8") + "\n"
        except UnicodeDecodeError as error:
            raise self._source.fault(self.number, f"it is not UTF-8 text ({error.reason})") from None
