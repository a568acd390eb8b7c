"""Every `migrate …` command in the documentation is one that the program takes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from migrate.cli import commands

ROOT = Path(__file__).parents[2]
# The README of each port in the gallery is written by `migrate port`.
PAGES = [
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if "gallery" not in page.parts),
    *sorted((ROOT / "examples").rglob("README.md")),
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
]
_SHELLS = ("", "bash", "console", "shell", "sh")
_COMMAND = re.compile(r"(?:^|\s|['\"])migrate\s(?P<words>.*)", re.DOTALL)
# A word that stands for a value: CHECKPOINT, FILE, N, …
_PLACEHOLDER = re.compile(r"[A-Z]([A-Z0-9_-]*)|.*….*|.*\.\.\..*|\$\w+.*")
_ENDS = ("|", "&&", "||", ";", ">", ">>", "2>&1")


def blocks(text: str) -> Iterator[str]:
    """Yield the lines of console blocks, continued lines joined; blocks without a fence too."""
    fence, language, lines = "", "", []
    for line in text.splitlines():
        mark = re.match(r"\s*(`{3,}|~{3,})(\w*)", line)
        if mark and not fence:
            fence, language = mark[1], mark[2]
        elif mark and mark[1].startswith(fence):
            fence = ""
        elif (fence and language in _SHELLS) or (not fence and line.startswith("    ")):
            lines.append(line.strip())
    yield from "\n".join(lines).replace("\\\n", " ").splitlines()


def inline(text: str) -> Iterator[str]:
    """Yield the commands that stand in prose, without what is optional in brackets."""
    prose = re.sub(r"^\s*(`{3,}).*?^\s*\1\s*$", "", text, flags=re.DOTALL | re.MULTILINE)
    for code in re.findall(r"(?<!`)`(migrate [^`]+)`(?!`)", prose):
        yield " ".join(code.split()).replace("[", " ").replace("]", " ")


def command_words(line: str) -> list[str] | None:
    """Return the words after `migrate` of a line that runs it; None of any other line."""
    line = line.removeprefix("$ ")
    match = re.match(r"(?:\w+=\S+ )*migrate\s+(.*)", line) or re.search(r"'migrate ([^']+)'", line)
    if match is None:
        return None
    words = shlex.split(match[1], comments=True)
    ends = [words.index(end) for end in _ENDS if end in words]
    return words[: min(ends)] if ends else words


def problem(words: list[str], complete: bool = True) -> str | None:
    """Return why the program would not take these words; None if it would.

    Args:
        words: of the command line, after `migrate`.
        complete: whether the words are a whole command, not a mention of one.
    """
    words = [word for word in words if word not in ("…", "...") and word[0] != "$"]
    while words and words[0] in ("--debug", "--version", "--help"):
        words = words[1:]
    if not words or _PLACEHOLDER.fullmatch(words[0]):
        return None
    command = commands.commands.get(words[0])
    if command is None:
        return f"there is no command {words[0]}"
    if {"-h", "--help"} & set(words):
        return None
    if all(parameter.name != "args" for parameter in command.params) and "--" in words:
        words = words[: words.index("--")]  # the command takes the script's arguments off itself
    context = click.Context(command, info_name=words[0])
    try:
        given, rest, _ = command.make_parser(context).parse_args(list(words[1:]))
    except click.UsageError as error:
        return None if not complete and "requires" in error.message else error.message
    if rest and not command.allow_extra_args:
        return f"too many words: {rest}"
    for parameter in command.params:
        wrong = _wrong(parameter, given.get(parameter.name), context, complete)
        if wrong:
            return wrong
    return None


def _wrong(
    parameter: click.Parameter, value: object, context: click.Context, complete: bool
) -> str | None:
    if value is None or str(value).startswith("Sentinel"):
        return f"{parameter.name} is missing" if complete and parameter.required else None
    if isinstance(parameter.type, click.Path | click.File) or value in (True, False):
        return None
    values = value if isinstance(value, list | tuple) else (value,)
    for one in values:
        if isinstance(one, str) and not _PLACEHOLDER.fullmatch(one) and "|" not in one:
            try:
                parameter.type.convert(one, parameter, context)
            except click.BadParameter as error:
                return error.message
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_commands_of_a_page_exist(page: Path) -> None:
    text = page.read_text()
    wrong = []
    for complete, lines in ((True, blocks(text)), (False, inline(text))):
        for line in lines:
            words = command_words(line)
            found = problem(words, complete) if words else None
            if found:
                wrong.append(f"{line.strip()}: {found}")
    assert wrong == []


def test_commands_are_found() -> None:
    text = "a\n\n    $ migrate run x.py \\\n        --json\n\n```console\n$ A=1 migrate check x.py # b\n```"
    assert list(filter(None, map(command_words, blocks(text)))) == [
        ["run", "x.py", "--json"],
        ["check", "x.py"],
    ]
    assert list(inline("`migrate run X [--json]` and\n```\n`migrate x`\n```")) == [
        "migrate run X  --json "
    ]
    assert command_words("migrate run x.py | head") == ["run", "x.py"]
    assert command_words("… --command='migrate doctor'") == ["doctor"]


@pytest.mark.parametrize(
    "line",
    [
        "run",
        "run x.py --replica 2",
        "run x.py --replicas two",
        "weights model.pt --to onnx",
        "rewrite x.py --epochs 2",
        "rewritten x.py",
        "doctor --repeats 1",
    ],
)
def test_wrong_commands_are_found(line: str) -> None:
    assert problem(line.split())


@pytest.mark.parametrize(
    "line", ["run x.py -- --epochs 2", "weights CHECKPOINT --to linen", "COMMAND --help"]
)
def test_right_commands_are_taken(line: str) -> None:
    assert problem(line.split()) is None
