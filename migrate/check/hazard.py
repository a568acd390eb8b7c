"""Base class of hazards: documentation page, examples and locations."""

from __future__ import annotations

import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar

import libcst as cst

from migrate.catalogue.target import TPU, XLA, XLA_ONLY, Target
from migrate.check.manual_work import ManualWork
from migrate.check.severity import Severity as Severity

if TYPE_CHECKING:
    from migrate.reading.facts import Facts


class Group(StrEnum):
    """Group of codes: the first digit of three."""

    SHAPES = "1"
    SYNCS = "2"
    RANKS = "3"
    LIBRARIES = "4"
    DTYPES = "5"
    MEMORY = "6"
    STRUCTURE = "7"
    MEANING = "8"

    @property
    def heading(self) -> str:
        """Common description of the hazards in the group."""
        return TITLES[self]

    @property
    def work(self) -> ManualWork:
        """Kind of manual work for most hazards of the group."""
        return _WORK[self]


TITLES = {
    Group.SHAPES: "Dynamic shapes: one more compilation for every new shape",
    Group.SYNCS: "Host syncs: the program waits for a value of the device",
    Group.RANKS: "Ranks: replicas that do not do the same hang",
    Group.LIBRARIES: "Libraries that need CUDA",
    Group.DTYPES: "Dtypes",
    Group.MEMORY: "Memory and views",
    Group.STRUCTURE: "Device checks and the structure of the script",
    Group.MEANING: "Calls that raise on XLA, or do something else",
}
_WORK = {
    Group.SHAPES: ManualWork.SHAPES,
    Group.SYNCS: ManualWork.STEP,
    Group.RANKS: ManualWork.REPLICAS,
    Group.LIBRARIES: ManualWork.LIBRARY,
    Group.DTYPES: ManualWork.PRECISION,
    Group.MEMORY: ManualWork.MEMORY,
    Group.STRUCTURE: ManualWork.CALLS,
    Group.MEANING: ManualWork.CALLS,
}


@dataclass(frozen=True, eq=False)
class Hit:
    """Location of a hazard.

    Args:
        node: the node at which it is reported.
        message: what happens on a TPU, and what to do, in one line.
        severity: severity at this location.
        is_shown: whether `migrate rewrite` shows it although it is information.
        subject: name of the reported construct in the catalogue. Empty if it is no name.
        unless: code of a more specific hazard. On a line where that is reported, this one is not.
        about: the nodes of this file that the hit is about. The rewrite does not report it where it has a
            finding of the same code on each of them.
    """

    node: cst.CSTNode
    message: str
    severity: Severity
    is_shown: bool = False
    subject: str = ""
    unless: str = ""
    about: tuple[cst.CSTNode, ...] = ()


@dataclass(frozen=True)
class HazardExample:
    """A script with the lines that the hazard reports. It is a test, and a part of the page.

    A reported line ends in a comment with the hazard's code, and its severity where that is not the
    usual one: `# XLA101 info`. An example without such a comment must be left alone.
    """

    script: str

    def expected(self, code: str, usual: Severity) -> dict[int, Severity]:
        """Return the severity of each line (from 1) that the hazard `code` must report."""
        mark = re.compile(rf"# {code}(?: (\w+))?$")
        lines = enumerate(self.script.splitlines(), start=1)
        marked = {number: mark.search(line) for number, line in lines}
        return {
            number: Severity(match[1]) if match[1] else usual
            for number, match in marked.items()
            if match
        }


def example(script: str) -> HazardExample:
    """Return an example. The indentation of the text in the hazard's source is removed."""
    return HazardExample(inspect.cleandoc(script) + "\n")


class Hazard(ABC):
    """A construct that fails, hangs, is slow or is wrong on a TPU.

    The docstring is the hazard's page (first line: its title). It says why, and what to do. A subclass
    needs a docstring, an example that is reported, one that is left alone, and one with the fix. Otherwise
    it raises an error.
    """

    code: ClassVar[str]
    name: ClassVar[str]
    severity: ClassVar[Severity]
    nodes: ClassVar[tuple[type[cst.CSTNode], ...]]
    examples: ClassVar[tuple[HazardExample, ...]]
    # The fixed form of the reported example; nothing in it is reported.
    mended: ClassVar[HazardExample]
    # Which scripts are inspected at all: see `migrate.catalogue.prescan.Worded`.
    words: ClassVar[str] = ""
    of_facts: ClassVar[tuple[str, ...]] = ()
    # Whether it inspects only names and attributes that refer to something imported.
    of_names: ClassVar[bool] = False
    # Whether `migrate rewrite` shows it also where it is information.
    is_mentioned: ClassVar[bool] = False
    # Whether it is as bad where the code never runs: what is wrong is that it does not.
    of_idle_code: ClassVar[bool] = False
    # The packages that drive the TPU with which the hazard exists.
    targets: ClassVar[frozenset[Target]] = XLA_ONLY
    # What is different with torch_tpu: a section of the page. Empty if nothing is.
    on_torch_tpu: ClassVar[str] = ""
    # Kind of manual work, if it is not that of the group.
    other_work: ClassVar[ManualWork | None] = None

    def __init_subclass__(cls) -> None:
        if "code" not in cls.__dict__:
            return  # a common base of several hazards
        if not re.fullmatch(r"XLA[1-8]\d\d", cls.code):
            raise TypeError(f"hazard {cls.__name__}: {cls.code} is not a code")
        page = cls.__doc__ or ""
        if missing := [part for part in ("**Why.**", "**What to do.**") if part not in page]:
            raise TypeError(f"hazard {cls.code}: its docstring does not say {', '.join(missing)}")
        marked = [
            bool(example.expected(cls.code, cls.severity))
            for example in getattr(cls, "examples", ())
        ]
        if not any(marked):
            raise TypeError(
                f"hazard {cls.code} has no example with a line that ends in # {cls.code}"
            )
        if all(marked):
            raise TypeError(
                f"hazard {cls.code} has no example that is left alone: one without # {cls.code}"
            )
        if not hasattr(cls, "mended"):
            raise TypeError(
                f"hazard {cls.code} has no example of how it is mended: mended = example(…)"
            )

    @property
    def shown_on(self) -> Target:
        """The package that drives the TPU in the examples."""
        return XLA if XLA in self.targets else TPU

    @property
    def group(self) -> Group:
        """Group of the code, by its first digit."""
        return Group(self.code[3])

    @property
    def work(self) -> ManualWork:
        """Kind of manual work for the hazard."""
        return self.other_work or self.group.work

    @property
    def title(self) -> str:
        """The first line of the page."""
        return inspect.cleandoc(self.__doc__ or "").splitlines()[0]

    @abstractmethod
    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield the hits at `node`, whose type is among `nodes`."""

    def hit(
        self,
        node: cst.CSTNode,
        message: str,
        severity: Severity | None = None,
        *,
        is_shown: bool | None = None,
        subject: str = "",
    ) -> Hit:
        """Return a hit. Its default severity is that of the hazard.

        Args:
            node: the location.
            message: what happens on a TPU, and what to do.
            severity: severity at this location.
            is_shown: whether `migrate rewrite` shows it although it is information. Default: `is_mentioned`.
            subject: name of the reported construct in the catalogue.
        """
        shown = self.is_mentioned if is_shown is None else is_shown
        return Hit(node, message, severity or self.severity, shown, subject)
