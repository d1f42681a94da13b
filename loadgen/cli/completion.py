"""`loadgen completion`: what a shell needs to complete verbs and flags."""

from __future__ import annotations

import click

from ..errors import Exit

EPILOG = """\
\b
Examples:
  loadgen completion bash >> ~/.bashrc
  loadgen completion zsh > "${fpath[1]}/_loadgen"
  loadgen completion fish > ~/.config/fish/completions/loadgen.fish
"""


@click.command(epilog=EPILOG)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> int:
    """Write the shell's completion script for loadgen.

    The script asks loadgen itself for the verbs and flags, so that it need not be written again after an upgrade.
    """
    from click.shell_completion import get_completion_class

    from .main import cli

    made = get_completion_class(shell)
    assert made is not None
    click.echo(made(cli, {}, "loadgen", "_LOADGEN_COMPLETE").source().strip())
    return Exit.DONE
