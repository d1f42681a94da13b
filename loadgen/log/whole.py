"""A file that is there whole, or as it was before: what is written for others to find."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Where to write what is to be at `path`: a file beside it, which takes its place at the end. Where anything fails,
    what was at `path` stays, and nothing is left beside it. A pipe or a device is written to itself."""
    if path.exists() and not path.is_file():
        yield path
        return
    to = Path(os.path.realpath(path))  # a link stays a link
    if to.exists() and not os.access(to, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(to))
    if to.exists() and not os.access(to.parent, os.W_OK):  # there is no room for another file
        yield to
        return
    draft = to.with_name(f".loadgen-{os.getpid()}.tmp")
    try:
        yield draft
        if to.exists():
            draft.chmod(stat.S_IMODE(to.stat().st_mode))
        draft.replace(to)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise


def write_whole(path: Path, data: bytes) -> None:
    """Write `data` to `path`, or leave what is there."""
    with whole_file(path) as file:
        file.write_bytes(data)
