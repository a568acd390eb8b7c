"""Facts about a project before the decision: its code, a short run, the compiler's verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from migrate.assess.hours import Hours
from migrate.check.manual_work import ManualWork
from migrate.fit.verdict import FitVerdict, SliceResult

# Without these nothing trains on a TPU, and no rewrite takes them out.
BLOCKING = (ManualWork.FRAMEWORK, ManualWork.KERNELS)


@dataclass(frozen=True)
class Todo:
    """Manual work at one location.

    Attributes:
        place: `file:line:column`, the file in the project.
        rule: the rule or the hazard that says so.
        message: what it says.
        work: the kind of work.
        look: whether it is only to be looked at.
        always: whether it concerns every run of the script: what it imports under a condition, or in a
            function, it may do without.
    """

    place: str
    rule: str
    message: str
    work: ManualWork
    look: bool
    always: bool


@dataclass(frozen=True)
class Code:
    """Result of the rewrite for a project.

    Attributes:
        files: Python files and notebooks of the project.
        rewritten: number of these files that the rewrite changes.
        edits: what is done by itself.
        reached: files that the script runs, itself included.
        todo: what is left in these.
        elsewhere: how much is left in other files of the project.
        unread: files that the script runs and that could not be rewritten, each with the reason.
    """

    files: int
    rewritten: int
    edits: int
    reached: int
    todo: tuple[Todo, ...]
    elsewhere: int
    unread: tuple[str, ...] = ()

    @property
    def by_hand(self) -> tuple[Todo, ...]:
        """Work to do, without what only needs a check."""
        return tuple(todo for todo in self.todo if not todo.look)

    @property
    def blocking(self) -> tuple[Todo, ...]:
        """Work that keeps every run of the script from a TPU."""
        return tuple(todo for todo in self.by_hand if todo.work in BLOCKING and todo.always)

    def jobs(self, hours: Hours) -> list[EffortItem]:
        """The work by its kinds, the longest first."""
        jobs = []
        for work in ManualWork:
            todo = tuple(todo for todo in self.by_hand if todo.work is work)
            if todo:
                jobs.append(EffortItem(work, todo, hours.of(work, len(todo))))
        return sorted(jobs, key=lambda job: -job.hours)

    def hours(self, hours: Hours) -> float:
        """Assumed hours for all of the work, setup included."""
        looked = sum(todo.look for todo in self.todo)
        return hours.setup + hours.look * looked + sum(job.hours for job in self.jobs(hours))


@dataclass(frozen=True)
class EffortItem:
    """Work of one kind.

    Attributes:
        work: the kind.
        todo: locations of the work.
        hours: assumed hours.
    """

    work: ManualWork
    todo: tuple[Todo, ...]
    hours: float


@dataclass(frozen=True)
class ObservedRun:
    """Observations of a short run on simulated replicas.

    Attributes:
        why: why there is nothing to show, or "" if there is.
        failed: whether the script itself ended with an error: what runs it to compile it would too.
        replicas: how many there were.
        seconds: time that the run took.
        steps: number of training steps of the first replica.
        compiled: number of these steps that compiled something.
        late: share of the later half of these steps that compiled something.
        changes: what was new in graphs that training steps after the first two compiled again, with the line.
        reads: lines where Python waits for a value in every training step or every second one.
        on_cpu: operations that XLA does not lower, with their lines.
        parted: lines where replicas executed other graphs than each other.
        unended: lines of optimizer steps that nothing ends.
    """

    why: str = ""
    failed: bool = False
    replicas: int = 0
    seconds: float = 0.0
    steps: int = 0
    compiled: int = 0
    late: float = 0.0
    changes: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    on_cpu: tuple[str, ...] = ()
    parted: tuple[str, ...] = ()
    unended: tuple[str, ...] = ()

    @property
    def dynamic(self) -> bool:
        """Whether its steps keep compiling because shapes or values change from step to step."""
        return self.steps >= 6 and self.late > 0.5


@dataclass(frozen=True)
class Fitted:
    """Answer of the TPU's compiler for the training step.

    Attributes:
        why: why it was not asked, or found no step, or "" if it answered.
        verdicts: the verdicts, by slice.
        notes: what holds for all of them.
        batch: the option that is the batch, with its value, or "" if it was not named.
        largest: the largest batch that fits, by slice, where it was looked for.
        host_seconds: processor time of the host for a step, measured here; 0 where it was not.
    """

    why: str = ""
    verdicts: tuple[FitVerdict, ...] = ()
    notes: tuple[str, ...] = ()
    batch: str = ""
    largest: tuple[SliceResult, ...] = ()
    host_seconds: float = 0.0

    @property
    def fitting(self) -> Sequence[FitVerdict]:
        """The slices on which the step compiles and has room."""
        return [
            verdict
            for verdict in self.verdicts
            if verdict.fits and verdict.bound and verdict.bound.seconds
        ]

    def largest_on(self, verdict: FitVerdict) -> str:
        """Largest batch on a slice, as "--batch-size 512, the largest that fits", or ""."""
        named = (each.what for each in self.largest if each.verdicts[0].product == verdict.product)
        return next(named, "")


@dataclass(frozen=True)
class AssessmentFacts:
    """All of it.

    Attributes:
        project, script: project and script, as the user named them.
        args: arguments of the script.
        code: result of the rewrite for torch_xla, which is run and compiled.
        code_on_tpu: result of the rewrite for torch_tpu.
    """

    project: Path
    script: Path
    args: tuple[str, ...]
    code: Code
    code_on_tpu: Code
    ran: ObservedRun
    fitted: Fitted
