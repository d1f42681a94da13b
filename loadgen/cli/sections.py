"""Options in sections: so many are read only when they are grouped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

_REST = "Other options"
WIDTH = 28  # of the column of names, the same under every heading


class SectionedCommand(click.Command):
    """A command whose help lists its options under the headings that `section` gave them."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                names, text = record
                sections.setdefault(getattr(param, "section", _REST), []).append((names.ljust(WIDTH), text))
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records, col_max=WIDTH)


def section(title: str, *options: Callable[[Any], Any]) -> Callable[[F], F]:
    """Several `click.option` decorators as one, under a heading."""

    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
            function.__click_params__[-1].section = title  # type: ignore[attr-defined]
        return function

    return decorate
