"""`migrate completion`."""

from __future__ import annotations

import click

_SHELLS = ("bash", "zsh", "fish")


@click.command(
    epilog="Example: migrate completion bash >> ~/.bashrc",
    short_help="Print the script that completes commands in your shell.",
)
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that completes commands, options and paths in bash, zsh or fish.

    Add it to the startup file of your shell, then open a new shell: ~/.bashrc for bash, ~/.zshrc for zsh,
    ~/.config/fish/completions/migrate.fish for fish.
    """
    from click.shell_completion import get_completion_class

    complete = get_completion_class(shell)
    assert complete is not None
    click.echo(complete(context.find_root().command, {}, "migrate", "_MIGRATE_COMPLETE").source())
