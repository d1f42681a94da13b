"""Where workloads are found: those that come with the program, by name, and any file by its path."""

from __future__ import annotations

import difflib
from pathlib import Path

from ..errors import UsageError
from .definition import Workload, parse_workload
from .paths import asked

MOST_BYTES = 16 << 20
_PACKAGE = Path(__file__).parent.parent
# Within an installed package, else beside it in a checkout.
FOLDERS = (_PACKAGE / "_workloads", _PACKAGE.parent / "workloads")


def names() -> list[str]:
    """Of the workloads that come with the program."""
    return sorted(path.stem for path in _folder().glob("*.toml"))


def load_workload(given: str, flag: str = "--workload") -> Workload:
    """The workload of a name or of a file. Raises UsageError, in one sentence, for one that is neither."""
    path = Path(given)
    if not _looks_like_path(given):
        if given in names():
            path = _folder() / f"{given}.toml"
        elif not asked(path, "workload file", _remedy(flag)).is_file():
            close = difflib.get_close_matches(given, names(), n=2, cutoff=0.5)
            hint = f"did you mean {' or '.join(close)}? " if close else ""
            raise UsageError(
                f"there is no workload {given}", f"{hint}loadgen workloads list shows them; or give the path of a file"
            )
    return parse_workload(_read(path, flag), path.name)


def _folder() -> Path:
    return next((folder for folder in FOLDERS if folder.is_dir()), FOLDERS[0])


def _looks_like_path(given: str) -> bool:
    return not given or "/" in given or given.endswith(".toml")


def _remedy(flag: str) -> str:
    return f"give the name of a workload or a TOML file to {flag}"


def _read(path: Path, flag: str) -> str:
    remedy = _remedy(flag)
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except IsADirectoryError:
        raise UsageError(f"the workload file {path} is a folder", remedy) from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is no path"
        raise UsageError(f"the workload file {path} cannot be read: {why}", remedy) from None
    if len(data) > MOST_BYTES:
        raise UsageError(f"the workload file {path} is larger than {MOST_BYTES >> 20} MiB", remedy)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise UsageError(f"the workload file {path} is not UTF-8 text: line {line}", remedy) from None
