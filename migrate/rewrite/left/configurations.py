"""Find CUDA in configuration files of a project: `device: cuda` in YAML, `"backend": "nccl"` in JSON.

Shell scripts are included: `--device cuda:0`. Variables that change every dtype in torch_xla are found too
(`export XLA_USE_BF16=1`), and submodules that `.gitmodules` names, that the scripts import and that are not
checked out.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from migrate.catalogue.target import XLA, Target, in_words
from migrate.check.hazard import Severity
from migrate.check.rules.dtypes.xla_bf16_environment import (
    VARIABLES,
    XlaBf16Environment,
    what_it_does,
)
from migrate.rewrite.results import FileRewrite, Note

SUFFIXES = frozenset({".json", ".yaml", ".yml"})
LARGEST = 256 * 1024  # a larger file is data
# A key about devices with a value that is only a device. Lists of packages or words have no such pair.
SAID = re.compile(
    r"""(?:^|[\s{,'"])(?P<key>[\w.-]*(?:device|backend|accelerator)[\w.-]*)['"]?\s*:\s+"""
    r"""(?P<quote>['"]?)(?P<value>cuda(?::\d+)?|gpu|nccl)(?P=quote)\s*(?:[,}\]#]|$)""",
    re.IGNORECASE | re.MULTILINE,
)

# Options and settings of a command: `--device "cuda:0"`, `--backend=nccl`, `trainer.accelerator=gpu`.
SHELL = frozenset({".bash", ".sh"})
PASSED = re.compile(
    r"""(?:^|[\s'"])(?P<key>(?:--?)?[\w.-]*(?:device|backend|accelerator)[\w.-]*)(?P<between>[ \t]+|=)"""
    r"""(?P<quote>['"]?)(?P<value>cuda(?::\d+)?|gpu|nccl)(?P=quote)(?=[\s;&|)'"\\]|$)""",
    re.IGNORECASE | re.MULTILINE,
)
# `export XLA_USE_BF16=1`, or `XLA_USE_BF16: "1"` of an environment in YAML.
BFLOAT16 = re.compile(
    rf"""\b(?P<key>{"|".join(sorted(VARIABLES))})['"]?(?:=|:[ \t]+)['"]?(?:1|true)\b"""
)

SUBMODULES = ".gitmodules"
SUBMODULE = re.compile(r"^\s*path\s*=\s*(?P<path>\S.*?)\s*$", re.MULTILINE)


def in_configurations(
    folder: Path, paths: Iterable[Path], target: Target = XLA
) -> Iterator[FileRewrite]:
    """Yield the configuration files and shell scripts among `paths` that name CUDA, with their settings.

    The code that reads them is unknown, so they stay unchanged.
    """
    for path in paths:
        if (
            path.suffix not in SUFFIXES | SHELL
            or path.is_symlink()
            or path.stat().st_size > LARGEST
        ):
            continue
        data = path.read_bytes()
        text = data.decode(errors="replace")
        notes = tuple(
            replace(note, message=in_words(note.message, target)) if target != XLA else note
            for note in (_passed(text) if path.suffix in SHELL else _notes(text))
        )
        notes += tuple(_bfloat16(text, target))
        if notes:
            yield FileRewrite(path.relative_to(folder), data, data, findings=notes)


def absent_submodules(folder: Path, paths: Collection[Path]) -> Iterator[FileRewrite]:
    """Yield each `.gitmodules` with imported submodules that are not checked out."""
    for path in paths:
        if path.name == SUBMODULES and not path.is_symlink():
            data = path.read_bytes()
            if notes := tuple(_absent(path, data.decode(errors="replace"), paths)):
                yield FileRewrite(path.relative_to(folder), data, data, findings=notes)


def _absent(modules: Path, text: str, paths: Iterable[Path]) -> Iterator[Note]:
    """Yield the submodules that scripts import and that are not checked out."""
    scripts = [path for path in paths if path.suffix == ".py"]
    for entry in SUBMODULE.finditer(text):
        place = modules.parent / entry["path"]
        if place.is_dir() and any(place.iterdir()):
            continue
        package = re.escape(place.name.replace("-", "_"))
        imports = re.compile(rf"^[ \t]*(?:from|import)[ \t]+{package}\b".encode(), re.MULTILINE)
        if any(imports.search(path.read_bytes()) for path in scripts):
            number = text.count("\n", 0, entry.start("path")) + 1
            message = (
                f"the submodule `{entry['path']}` is not checked out, and scripts import `{place.name}`: "
                "what it does for CUDA is not seen. Run git submodule update --init --recursive, and "
                "rewrite again"
            )
            yield Note(number, 1, "unhandled", message)


def _bfloat16(text: str, target: Target) -> Iterator[Note]:
    """Yield the settings of variables that make float32 bfloat16 in torch_xla."""
    for match in BFLOAT16.finditer(text):
        begin = text.rfind("\n", 0, match.start()) + 1
        if "#" not in text[begin : match.start()]:
            number, column = text.count("\n", 0, begin) + 1, match.start() - begin + 1
            message = what_it_does(match["key"], target)
            yield Note(number, column, XlaBf16Environment.code, message, severity=Severity.WARNING)


def _notes(text: str) -> Iterator[Note]:
    for match in SAID.finditer(text):
        yield from _note(text, match, f"`{match['key']}: {match['value']}`", "a script reads this")


def _passed(text: str) -> Iterator[Note]:
    """Yield the options and settings that commands of a shell script pass."""
    for match in PASSED.finditer(text):
        is_option, between = match["key"].startswith("-"), match["between"]
        if not is_option and between != "=":
            continue  # words in a text
        said = f"`{match['key']}{'=' if between == '=' else ' '}{match['value']}`"
        yield from _note(text, match, said, "this comes to a script, whose default it overrides")


def _note(text: str, match: re.Match[str], said: str, condition: str) -> Iterator[Note]:
    """Yield the note on one setting, unless the setting is in a comment."""
    at = match.start("key")
    begin = text.rfind("\n", 0, at) + 1
    if "#" in text[begin:at]:
        return
    number, column = text.count("\n", 0, at) + 1, at - begin + 1
    if match["value"].lower() == "nccl":
        # After the rewrite, most calls that join the group pass 'xla', whatever the setting is.
        message = f"{said}: see that no script uses it: the backend on XLA is 'xla'"
        yield Note(number, column, "init-process-group", message, severity=Severity.INFO)
    else:
        yield Note(number, column, "device", f"{said}: the device on XLA is 'xla', if {condition}")
