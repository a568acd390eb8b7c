"""The words of options and messages: how they begin, and how long a sentence may be."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from migrate.cli import commands
from tests import words

ROOT = Path(__file__).parents[1]
# Openers that lean on something before them: prepositions, pronouns, conjunctions, fragments.
OPENERS = {
    *(
        "a",
        "above",
        "all",
        "alone",
        "also",
        "an",
        "any",
        "as",
        "at",
        "because",
        "beside",
        "but",
        "by",
    ),
    *(
        "each",
        "else",
        "for",
        "from",
        "half",
        "how",
        "if",
        "in",
        "it",
        "its",
        "less",
        "more",
        "most",
    ),
    *(
        "no",
        "none",
        "not",
        "nothing",
        "of",
        "on",
        "one",
        "only",
        "other",
        "others",
        "so",
        "than",
        "that",
    ),
    *(
        "the",
        "then",
        "there",
        "these",
        "they",
        "this",
        "those",
        "to",
        "until",
        "what",
        "when",
        "where",
    ),
    *("whether", "which", "while", "who", "whose", "why", "with", "without", "your"),
}
LONGEST = 40
ERRORS = re.compile(r"(Error|Exception|Exit)$")


def opens_well(text: str) -> bool:
    """Whether a text begins with a capital, and with a noun or a verb."""
    first = text.split()[0].strip(",.:;")
    # The name of a format or a type is its own opener: `SHA-256 of …`.
    return first[:1].isupper() and first.lower() not in OPENERS


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a message; parts after a semicolon are sentences of their own."""
    yield from re.split(r"(?<=[.!?;])\s+|\n+", text)


def long_sentences(text: str) -> list[str]:
    return [part for part in sentences(text) if len(part.split()) > LONGEST]


def described_options() -> Iterator[tuple[str, click.Option]]:
    for name, command in {"": commands, **commands.commands}.items():
        for option in command.params:
            if isinstance(option, click.Option) and option.name != "plant":
                yield f"migrate {name} {option.opts[0]}", option


def text_of(node: ast.expr) -> str | None:
    """Return the text of a string, with a word for each value in it; None for other expressions."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else "VALUE" for part in node.values
        )
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = text_of(node.left), text_of(node.right)
        return None if left is None or right is None else left + right
    return None


def messages(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text of each string that an error of a file is made with."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        name = node.func.id if isinstance(node.func, ast.Name) else name
        if ERRORS.search(name):
            for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
                if text := text_of(argument):
                    yield node.lineno, text


@pytest.mark.parametrize(("where", "option"), list(described_options()))
def test_help_of_options(where: str, option: click.Option) -> None:
    assert option.help, f"{where} has no help"
    assert opens_well(option.help), f"{where}: {option.help}"
    assert option.help.endswith("."), f"{where}: {option.help}"
    assert not long_sentences(option.help), f"{where}: {option.help}"


@pytest.mark.parametrize("name", sorted(commands.commands))
def test_help_of_commands(name: str) -> None:
    command = commands.commands[name]
    for text in (command.help or "", command.short_help or ""):
        assert text
        assert text[0].isupper()
        assert opens_well(text), text
        assert not long_sentences(text.replace("\n", " ")), text


@pytest.mark.parametrize("package", ["migrate", "converters", "shims"])
def test_sentences_of_messages(package: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for line, text in messages(path)
        if long_sentences(text)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "text", ["Of a run today.", "where its state does not tell", "The tighter limits.", "seconds"]
)
def test_the_check_of_openers_can_fail(text: str) -> None:
    assert not opens_well(text)


def test_the_check_of_sentences_can_fail(tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    path.write_text(f"raise FitError(f'{'word ' * 40}{{x}}', 'short. {'word ' * 40}')\n")
    assert [line for line, text in messages(path) if long_sentences(text)] == [1]


def test_a_wording_that_two_tests_assert_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(words, "ROOT", tmp_path)
    (tmp_path / "test_it.py").write_text(
        'def test_first():\n    assert "`x` is read at every step of it" in message\n\n\n'
        'def test_second():\n    assert finding.message.endswith(f"{x} is read at every step")\n\n\n'
        'def test_values():\n    assert "`x` (train.py:10)" in message\n'
    )
    listed = [(line, what) for _, line, what in words.asserted_twice(tmp_path)]
    assert [line for line, _ in listed] == [6, 6]
    assert '"is read at every"' in listed[0][1]
    assert "test_it.py:1" in listed[0][1]


def test_british_spelling_is_listed(tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    path.write_text(
        "# Normalises the labelled rows.\nNAMES = ('optimiser', \"labelled\")\n# normal size\n"
    )
    assert [(line, what) for _, line, what in words.offences_in([path])] == [
        (1, "British spelling: Normalises")
    ]
