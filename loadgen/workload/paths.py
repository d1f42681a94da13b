"""A path that a person gave, before anything is asked about it."""

from __future__ import annotations

from pathlib import Path

from ..errors import UsageError


def asked(path: Path, what: str, remedy: str) -> Path:
    """The same path, there or not. Raises UsageError, in one sentence, where the system does not even say whether it
    is there: a name too long, a NUL in it, a folder that may not be looked into."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is no path"
        raise UsageError(f"the {what} {str(path)[:200]!r} cannot be read: {why}", remedy) from None
    return path
