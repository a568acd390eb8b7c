"""Help pages in sections: options by subject, commands by task. click's own formatter writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

# Heading of the options that no section names: --json, --debug, --help.
_GENERAL = "General"
# Widest column of names, as in click.
_WIDEST = 30


class SectionedCommand(click.Command):
    """A command whose help lists its options in sections.

    Args:
        sections: heading → options by their long names, in the order of the page.
    """

    def __init__(
        self, *args: Any, sections: Mapping[str, Sequence[str]] | None = None, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self.sections = sections or {}

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each section; options that no section names come last."""
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        by_name = {name: option for option in options for name in option.opts}
        sections = {
            heading: [by_name[name] for name in names] for heading, names in self.sections.items()
        }
        listed = {option.name for section in sections.values() for option in section}
        sections[_GENERAL if listed else "Options"] = [
            option for option in options if option.name not in listed
        ]
        rows = {
            heading: [row for option in section if (row := option.get_help_record(ctx)) is not None]
            for heading, section in sections.items()
        }
        # All sections share one column of names; longer names have a line of their own.
        names = [name for section in rows.values() for name, _ in section]
        width = min(max(map(len, names)), _WIDEST)
        for heading, section in rows.items():
            if section:
                with formatter.section(heading):
                    formatter.write_dl([(name.ljust(width), text) for name, text in section])


class ScriptCommand(SectionedCommand):
    """A command whose arguments after `--` belong to a script; they become its parameter `args`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep what stands behind `--` for the script."""
        end = args.index("--") if "--" in args else len(args)
        rest = super().parse_args(ctx, args[:end])
        ctx.params["args"] = tuple(args[end + 1 :])
        return rest


class SectionedGroup(click.Group):
    """A group whose help lists its commands by task.

    Args:
        tasks: task → names of commands, in the order of the page.
    """

    def __init__(
        self, *args: Any, tasks: Mapping[str, Sequence[str]] | None = None, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self.tasks = tasks or {}

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands of each task; all columns are as wide as the longest name."""
        width = max(map(len, self.list_commands(ctx)))
        for task, names in self.tasks.items():
            rows = []
            for name in names:
                command = self.get_command(ctx, name)
                if command is not None:
                    rows.append((name.ljust(width), command.get_short_help_str(limit=100)))
            with formatter.section(task):
                formatter.write_dl(rows)


class EachSideOption(click.Option):
    """An option whose row in the help also stands for its hidden forms for one side.

    Args:
        row: the names as the help shows them, such as `--dtype[-a|-b]`.
    """

    def __init__(self, *args: Any, row: str, **options: Any) -> None:
        super().__init__(*args, **options)
        self.row = row

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the row: all names with their value, and the help."""
        record = super().get_help_record(ctx)
        return record and (record[0].replace(self.opts[0], self.row, 1), record[1])
