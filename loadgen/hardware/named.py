"""Models by name: the fields of their public `config.json` that matter, each with its source (`models.json`)."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import orjson

from ..errors import UsageError
from .config import model_from_config
from .model import Model


def table() -> dict[str, dict[str, Any]]:
    """name → `source`, `config`, and the `published` figures that the counts are held against."""
    text = files(__package__).joinpath("models.json").read_bytes()
    found: dict[str, dict[str, Any]] = orjson.loads(text)
    return found


def model_named(name: str) -> Model:
    """Raises UsageError with the names there are."""
    models = table()
    key = name.strip().lower().rpartition("/")[2].removesuffix("-instruct")
    if key not in models:
        raise UsageError(
            f"there is no model {name} in the table", f"give its config.json, or one of {', '.join(models)}"
        )
    return model_from_config(models[key]["config"], key, source=models[key]["source"])
