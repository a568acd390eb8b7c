"""Options that a command does not have: those of the user's script, and mistyped ones."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import click

# The parameter of a command that takes what follows `--`.
_ARGUMENTS = "args"
# The option of a command that may run a script; its arguments follow `--` then.
_FROM_SCRIPT = "--from-script"
# The option that describes one input of a model.
_INPUTS = "--inputs"
# Similarity of two names from which one counts as a typo of the other. click asks for 0.6: `--epochs` and
# `--replicas`.
_ALIKE = 0.8


def unknown_option_message(error: click.NoSuchOption, words: Sequence[str]) -> str:
    """Return one line about an option that the command does not have.

    Args:
        error: click's.
        words: the command line, without the name of the program.
    """
    usual = usual_message(error)
    context = error.ctx
    if context is None:
        return usual
    from_script = _is_option_given(_FROM_SCRIPT, context.command, words)
    if not from_script and all(param.name != _ARGUMENTS for param in context.command.params):
        return usual
    command = _CommandLine(context, words, needs_target=not from_script)
    if not from_script and not command.runs_script:
        return usual  # `migrate fit net.py:Net`
    names = [name for option in context.command.params for name in option.opts]
    if _is_mistyped(error.option_name, names) and not _is_defined_in(
        command.script, error.option_name
    ):
        return usual
    others = _commands_with(error.option_name, context)
    if others and not _is_defined_in(command.script, error.option_name):
        of = ", ".join(f"`migrate {name}`" for name in others)
        return (
            f"{error.option_name} is an option of {of}, not of `migrate {context.command.name}`; "
            f"if it is the script's own, it goes after --: {command.corrected}"
        )
    return f"arguments of the script go after --: {command.corrected}"


def _commands_with(option: str, context: click.Context) -> list[str]:
    """Return the names of the other commands that have `option`."""
    above = context.parent
    if above is None or not isinstance(above.command, click.Group):
        return []
    commands = {
        name: above.command.get_command(above, name) for name in above.command.list_commands(above)
    }
    return [
        name
        for name, command in commands.items()
        if command is not None and _has_option(command, option)
    ]


def _has_option(command: click.Command, name: str) -> bool:
    return any(name in param.opts for param in command.params)


def _is_option_given(name: str, command: click.Command, words: Sequence[str]) -> bool:
    """Whether the command has an option, and the command line uses it."""
    return _has_option(command, name) and any(word.partition("=")[0] == name for word in words)


def usual_message(error: click.ClickException) -> str:
    """Return one line about a wrong command line."""
    context = getattr(error, "ctx", None)
    name = "migrate" if context is None else context.command_path
    message = " ".join(error.format_message().split()).rstrip(".")
    surplus = re.search(r"unexpected extra arguments? \((.*)\)", message)
    if surplus is not None and context is not None and _has_option(context.command, _INPUTS):
        specs = [word for word in surplus[1].split(" ") if re.match(r"[\w:]+=", word)]
        if specs:
            return f"each input has an {_INPUTS} of its own: {_INPUTS} {shlex.join(specs[:1])}"
    return f"{message}; see `{name} --help`"


def _is_mistyped(option: str, names: Sequence[str]) -> bool:
    """Whether it is one of the command's own options, nearly or in part."""
    begins = len(option) > 3 and any(name.startswith(option) for name in names)
    return begins or bool(difflib.get_close_matches(option, names, cutoff=_ALIKE))


def _is_defined_in(script: Path | None, option: str) -> bool:
    """Whether the script itself has the option, as a string of that content."""
    try:
        text = "" if script is None else script.read_text(errors="replace")
    except OSError:
        return False
    return f'"{option}"' in text or f"'{option}'" in text


class _CommandLine:
    """A command line whose words are sorted into those of the command and those of its script.

    Attributes:
        script: the file of the script, where there is one.
        runs_script: whether it is a script that the command is to run.
        corrected: the command line as it should be.
    """

    def __init__(
        self, context: click.Context, words: Sequence[str], *, needs_target: bool = True
    ) -> None:
        self._options = {
            name: option
            for option in context.command.params
            if isinstance(option, click.Option)
            for name in (*option.opts, *option.secondary_opts)
        }
        words = list(words[list(words).index(context.command.name or "") + 1 :])
        end = words.index("--") if "--" in words else len(words)
        before, after = words[:end], words[end + 1 :]
        options, free = self._options_and_free(before)
        target = self._target(before, free, options)
        named = "" if target is None else before[target]
        self.runs_script = ":" not in named and Path(named).suffix in ("", ".py")
        mine = [word for index, word in enumerate(before) if index in options or index == target]
        others = [word for index, word in enumerate(before) if index not in options | {target}]
        paths = [Path(re.sub("^--(from-)?script=", "", word)) for word in mine]
        self.script = next((path for path in paths if path.suffix == ".py"), None)
        if target is None and needs_target:
            mine.insert(0, context.command.params[0].make_metavar(context))
        command = f"migrate {context.command.name} {shlex.join(mine)}"
        self.corrected = f"{command} -- {shlex.join([*others, *after])}"

    def _options_and_free(self, words: Sequence[str]) -> tuple[set[int], list[int]]:
        """Return the indices of the command's options with their values, and of words that are no options."""
        options, free, is_value = set[int](), list[int](), False
        for index, word in enumerate(words):
            option = self._options.get(word.partition("=")[0])
            if is_value or option is not None:
                options.add(index)
            elif not word.startswith("-"):
                free.append(index)
            is_value = (
                not is_value
                and option is not None
                and "=" not in word
                and not (option.is_flag or option.count)
            )
        return options, free

    def _target(self, words: Sequence[str], free: Sequence[int], options: set[int]) -> int | None:
        """Return the index of the script or project; in `--epochs 2 train.py` it is the third word."""
        there = [index for index in free if Path(words[index]).exists()]
        alone = [
            index
            for index in free
            if index == 0 or index - 1 in options or not words[index - 1].startswith("-")
        ]
        return next(iter(there or alone), None)
