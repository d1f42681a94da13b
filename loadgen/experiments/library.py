"""Where experiments are found: those that come with the program, by name, and any file by its path."""

from __future__ import annotations

import difflib
from pathlib import Path

from ..errors import UsageError
from .definition import Experiment, parse_experiment

READY = Path(__file__).parent / "ready"
MOST_BYTES = 1 << 20


def names() -> list[str]:
    """Of the experiments that come with the program."""
    return sorted(path.stem for path in READY.glob("*.toml"))


def load_experiment(given: str) -> Experiment:
    """The experiment of a name or of a file. Raises UsageError, in one sentence, for one that is neither."""
    path = Path(given)
    if given in names():
        path = READY / f"{given}.toml"
    elif "/" not in given and not given.endswith(".toml"):
        close = difflib.get_close_matches(given, names(), n=2, cutoff=0.5)
        hint = f"did you mean {' or '.join(close)}? " if close else ""
        raise UsageError(
            f"there is no experiment {given}", f"{hint}loadgen experiment --list shows them; or give the path of a file"
        )
    try:
        data = path.read_bytes()[: MOST_BYTES + 1]
        if len(data) > MOST_BYTES:
            raise UsageError(f"the experiment file {path} is larger than 1 MiB", "give an experiment's TOML file")
        return parse_experiment(data.decode("utf-8-sig"), path.name)
    except UnicodeDecodeError:
        raise UsageError(f"the experiment file {path} is not UTF-8 text", "give an experiment's TOML file") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is no path"
        raise UsageError(f"the experiment file {path} cannot be read: {why}", "give a readable TOML file") from None
