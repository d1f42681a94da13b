"""A line of server.jsonl: one look at a server's own metrics, as JSON. No I/O here.

    {"at_ns":…,"took_us":…,"step":1,"source":"http://gpu1:8000/metrics","values":{"running":16.0,"waiting":2.0,…}}

`engines` is there only where the page tells several apart, `error` instead of `values` where the scrape failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import LogError
from ..results import ServerSample


def server_object(sample: ServerSample) -> dict[str, Any]:
    line: dict[str, Any] = {
        "at_ns": sample.at_ns,
        "took_us": sample.took_us,
        "step": sample.step,
        "source": sample.source,
    }
    if sample.error is not None:
        return {**line, "error": sample.error}
    line["values"] = dict(sample.values)
    if sample.engines:
        line["engines"] = {engine: dict(values) for engine, values in sample.engines.items()}
    return line


def decode_server(obj: Mapping[str, Any], source: str = "log", number: int = 1) -> ServerSample:
    """A line, or its object in a stream → the sample; values that are no numbers are left out. Raises LogError, naming
    source and line, without the four keys that every line has."""
    at_ns, took_us, step, where = (obj.get(key) for key in ("at_ns", "took_us", "step", "source"))
    if not (type(at_ns) is int and type(took_us) is int and type(step) is int and isinstance(where, str)):
        raise LogError(
            f"{source} line {number}: a scrape needs at_ns, took_us, step and source",
            "delete server.jsonl: the report does without it",
        )
    engines, error = obj.get("engines"), obj.get("error")
    return ServerSample(
        at_ns,
        took_us,
        step,
        where,
        _numbers(obj.get("values")),
        {str(k): _numbers(v) for k, v in engines.items()} if isinstance(engines, Mapping) else {},
        None if error is None else str(error),
    )


def _numbers(value: Any) -> dict[str, float]:
    found = value.items() if isinstance(value, Mapping) else ()
    return {str(k): float(v) for k, v in found if isinstance(v, int | float) and not isinstance(v, bool)}
