"""What a run would send, without sending anything."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..client.dialects import find_dialect
from ..client.preflight import shape_prompt
from .config import RunConfig
from .placing import placement
from .setting import options_of, others_of, target_of, workload_of


def dry_run(config: RunConfig) -> dict[str, Any]:
    """The address and the body that a run would send first, without sending anything at all; of workers on a cluster,
    where they would be, which only the cluster can say."""
    workload = workload_of(config)
    target = target_of(config, workload)
    others = others_of(config, target)
    dialect = find_dialect(target.endpoint)
    options = options_of(config, target.endpoint)
    options = replace(options, model=options.model or "<from /v1/models>")
    body = dialect.body(shape_prompt(workload, None, None, "00000000"), options)
    return {
        "method": "POST",
        "url": target.display(),
        **({"urls": [one.display() for one in (target, *others)]} if others else {}),
        "headers": ["content-type", "accept", "x-request-id", *sorted(config.access.headers)],
        "body": body,
        **({"workers": placement(config)} if config.ray is not None else {}),
    }
