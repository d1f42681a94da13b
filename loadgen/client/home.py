"""The part file of a worker on another machine, as far as it has been brought home."""

from __future__ import annotations

from pathlib import Path

from ..errors import LoadgenError


class Home:
    """Where this machine keeps it; `there` is its path over there. Raises LoadgenError when the disk refuses."""

    def __init__(self, path: Path, there: str) -> None:
        self.path, self.there = path, there
        self.offset = 0  # of the file over there: what comes next
        self.records = 0  # whole ones, of this step
        try:
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise self._failed(error) from error

    def take(self, chunk: bytes) -> None:
        try:
            written = self._file.write(chunk)
            while written < len(chunk):
                written += self._file.write(chunk[written:])
        except OSError as error:
            raise self._failed(error) from error
        self.offset += len(chunk)
        self.records += chunk.count(b"\n")

    def afresh(self) -> None:
        """The file over there begins anew, with a new step."""
        self.offset = self.records = 0

    def close(self) -> None:
        self._file.close()

    def _failed(self, error: OSError) -> LoadgenError:
        return LoadgenError(
            f"{self.path} cannot be written: {error.strerror or error}", "write elsewhere with --output"
        )
