"""`[tool.migrate]` in the user's pyproject.toml: which hazards are reported, how, and where.

Configurations, comments and `--explain` may also use the former names of codes.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from migrate.catalogue.target import TARGETS, XLA, Target
from migrate.check.severity import Severity
from migrate.errors import MigrateError

CODE = re.compile(r"XLA\d{0,3}")
KEYS = ("select", "ignore", "exclude", "severity", "fail-on", "target")


class BadConfigError(MigrateError):
    """Error for an invalid configuration of `migrate check`.

    Cause: a key, a code or a severity in `[tool.migrate]` of pyproject.toml, or after `--select` or
    `--ignore`, that does not exist.

    Remedy: the keys are select, ignore, exclude (lists of strings), severity (a table from codes to
    "error", "warning" or "info"), fail-on (one of these) and target ("torch_xla"
    or "torch_tpu"); codes are XLA101 or the beginning of one, such as XLA1.
    """


@dataclass(frozen=True)
class Config:
    """Configuration of a check.

    Args:
        select: codes or prefixes of codes to report. Empty: all codes.
        ignore: codes or prefixes of codes not to report.
        exclude: patterns of paths below `root` to skip.
        severities: codes or prefixes of codes, each with the severity that replaces the usual severity.
        root: the folder of the configuration.
        fails_on: the lowest severity of a finding that sets exit code 1.
        target: the package that drives the TPU.
    """

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    severities: Mapping[str, Severity] = field(default_factory=dict, hash=False)
    root: Path = Path()
    fails_on: Severity = Severity.ERROR
    target: Target = XLA

    def selects(self, code: str) -> bool:
        """Whether `code` is reported: the longer of the matching selections decides."""
        chosen = max(
            (len(prefix) for prefix in self.select if names_code(prefix, code)), default=-1
        )
        dropped = max(
            (len(prefix) for prefix in self.ignore if names_code(prefix, code)), default=-1
        )
        if dropped >= 0 and dropped >= chosen:
            return False
        return chosen >= 0 or not self.select

    def severity(self, code: str, usual: Severity) -> Severity:
        """Return the user's severity for `code`, or `usual`."""
        matching = [prefix for prefix in self.severities if names_code(prefix, code)]
        return self.severities[max(matching, key=len)] if matching else usual

    def narrowed(
        self, select: Sequence[str], ignore: Sequence[str], known: Sequence[str] = ()
    ) -> Config:
        """Return the configuration with the settings of the command line, which replace or extend its own.

        Args:
            select, ignore: the codes, as the user wrote them.
            known: the codes that exist. Default: the codes of the hazards.

        Raises:
            BadConfigError: a code that does not exist.
        """
        chosen = _codes(list(select), "--select", known) or self.select
        ignored = self.ignore + _codes(list(ignore), "--ignore", known)
        return replace(self, select=chosen, ignore=ignored)


def find_config(start: Path, known: Sequence[str] = ()) -> Config:
    """Return the `[tool.migrate]` of the nearest pyproject.toml at or above `start` that has one.

    Args:
        start: a file or a folder.
        known: the codes that exist. Default: the codes of the hazards.

    Raises:
        BadConfigError: a key or a value is invalid.
    """
    start = start.resolve()
    for folder in (start, *start.parents):
        path = folder / "pyproject.toml"
        if not path.is_file():
            continue
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8")).get("tool", {}).get("migrate")
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
            raise BadConfigError(f"{path}: {error}", "fix the file first") from None
        if table is not None:
            return _config(table, path, known)
    return Config(root=start)


def _config(table: Any, path: Path, known: Sequence[str]) -> Config:
    if not isinstance(table, dict):
        raise BadConfigError(f"{path}: tool.migrate is not a table", "write [tool.migrate]")
    if unknown := sorted(table.keys() - set(KEYS)):
        what = f"{path}: [tool.migrate] has no key {unknown[0]!r}"
        raise BadConfigError(what, f"the keys are {', '.join(KEYS)}")
    exclude = table.get("exclude", [])
    if not isinstance(exclude, list) or not all(isinstance(pattern, str) for pattern in exclude):
        raise BadConfigError(
            f"{path}: exclude is not a list of strings", 'write exclude = ["old/*"]'
        )
    overrides = table.get("severity", {})
    if not isinstance(overrides, dict):
        what = f"{path}: severity is not a table"
        raise BadConfigError(what, 'write severity = { XLA201 = "info" }')
    fails_on = table.get("fail-on", Severity.ERROR)
    if fails_on not in set(Severity):
        raise BadConfigError(
            f"{path}: unknown severity {fails_on!r} in fail-on", "use error, warning or info"
        )
    target = table.get("target", XLA)
    if target not in TARGETS:
        raise BadConfigError(f"{path}: unknown target {target!r}", f"use {' or '.join(TARGETS)}")
    severities = {}
    for code, name in overrides.items():
        if name not in set(Severity):
            what = f"{path}: severity of {code} is {name!r}"
            raise BadConfigError(what, "use error, warning or info")
        severities[_codes([code], str(path), known)[0]] = Severity(name)
    return Config(
        _codes(table.get("select", []), f"{path}: select", known),
        _codes(table.get("ignore", []), f"{path}: ignore", known),
        tuple(exclude),
        severities,
        path.parent,
        Severity(fails_on),
        target,
    )


def _codes(entries: Any, where: str, known: Sequence[str]) -> tuple[str, ...]:
    """Return the codes of a list, "ALL" and comma-separated ones resolved."""
    if not isinstance(entries, list) or not all(isinstance(text, str) for text in entries):
        raise BadConfigError(f"{where}: not a list of codes", 'write ["XLA1", "XLA201"]')
    codes = [code for text in entries for code in re.split(r"[\s,]+", text.upper()) if code]
    codes = ["XLA" if code == "ALL" else code for code in codes]
    for code in codes:
        if not CODE.fullmatch(code):
            raise BadConfigError(
                f"{where}: {code} is not a code", "codes are XLA101, or XLA1 for all"
            )
        if not any(known_code.startswith(code) for known_code in known or known_codes()):
            what = f"{where}: there is no hazard {code}"
            raise BadConfigError(what, "`migrate check --explain list` lists all codes")
    return tuple(codes)


def known_codes() -> tuple[str, ...]:
    """Return the codes of all hazards, and of what the check itself reports."""
    from migrate.check.finding import UNREADABLE, UNUSED_IGNORE
    from migrate.check.rules import all_hazards

    return (UNREADABLE, UNUSED_IGNORE, *(hazard.code for hazard in all_hazards()))


# Former code of a construct, by its present code.
_BEFORE = {
    "XLA419": "XLA404",  # apex-amp
    "XLA420": "XLA404",  # apex-optimizers
    "XLA802": "XLA801",  # cuda-memory
    "XLA813": "XLA801",  # rng, for the random state of CUDA
    "XLA827": "XLA801",  # set-device
    "XLA828": "XLA801",  # cuda-streams
    "XLA832": "XLA801",  # cuda-timing
    "XLA833": "XLA801",  # typed-tensors
}

# Code of a name that `--explain` accepted before a rule replaced it.
OLD_NAMES = {
    "activation-checkpoint": "XLA808",
    "backend-check": "XLA703",
    "compile-backend": "XLA806",
    "device-ids": "XLA824",
    "device-type": "XLA702",
    "foreach-clip": "XLA812",
    "framework": "XLA411",
    "gone-from-torch-xla": "XLA819",
    "half-array": "XLA870",
    "half-precision": "XLA502",
    "load": "XLA817",
    "optimizer-before-move": "XLA805",
    "point-to-point": "XLA207",
    "reduce-average": "XLA810",
    "seed": "XLA813",
    "weight-tie": "XLA818",
}


def names_code(named: str, code: str) -> bool:
    """Whether a code or prefix from the user means `code`."""
    return code.startswith(named) or _BEFORE.get(code) == named


def naming(codes: Iterable[str], code: str) -> str | None:
    """Return the first code of a comment that means `code`, or None."""
    return next((named for named in codes if names_code(named, code)), None)
