"""The flags of shared prefixes and conversations, and how they become values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from .sections import section
from .values import Duration, Whole

FLAGS = section(
    "Sharing and conversations",
    click.option(
        "--shared-prefix-len",
        type=Whole(1),
        metavar="N",
        help="The first N of a prompt's tokens are the same in all prompts; they are part of --input-len.",
    ),
    click.option(
        "--prefix-groups",
        type=Whole(1),
        metavar="G",
        help="…or the same in each of G groups, which are drawn evenly.  [default: 1]",
    ),
    click.option(
        "--cache-block",
        type=Whole(1, 65536),
        metavar="N",
        help="Tokens in a block of the server's prefix cache, to say what it should save.  [default: learnt]",
    ),
    click.option(
        "--turns",
        metavar="N|A-B",
        help="Conversations of so many turns; each holds what was said before. -c is then users, who may be thinking;"
        " --rate is conversations.",
    ),
    click.option(
        "--turn-input-len", metavar="N|A-B", help="Prompt tokens that each turn after the first adds.  [default: 64]"
    ),
    click.option(
        "--think-time", type=Duration(), metavar="TIME", help="From an answer to the next turn.  [default: 0]"
    ),
    click.option(
        "--history",
        type=click.Choice(["server", "made"]),
        help="What is sent back as the answers: the server's own, or made text as long.  [default: server]",
    ),
)


def values(flags: Mapping[str, Any]) -> dict[str, Any]:
    """What of a `WorkloadChoice` these flags say. Raises UsageError."""
    from ..workload.sessions import parse_sessions

    spoken = (flags["turns"], flags["turn_input_len"], flags["think_time"], flags["history"])
    return {
        "shared_prefix": flags["shared_prefix_len"],
        "prefix_groups": flags["prefix_groups"],
        "sessions": parse_sessions(*spoken),
    }
