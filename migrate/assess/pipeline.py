"""`migrate assess`: the project is rewritten, run for some steps, compiled for slices, and weighed."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from pathlib import Path

from converters.installing import require_installed
from migrate.assess.code import code_of
from migrate.assess.decide import Decision, decide
from migrate.assess.errors import AssessError
from migrate.assess.facts import AssessmentFacts, Fitted, ObservedRun
from migrate.assess.hours import Hours
from migrate.assess.money import TrainingPlan
from migrate.assess.prices import Prices
from migrate.assess.run import Ready, rewritten_project, short_run
from migrate.catalogue.target import TPU
from migrate.check.config import Config
from migrate.counts import many
from migrate.errors import MigrateError
from migrate.fit.batch import batch_option
from migrate.fit.pipeline import FitOptions, ScriptTarget, fit
from migrate.fit.products import Slice
from migrate.progress import Progress
from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.options import RewriteOptions
from migrate.versions import NEEDS

_NAMES = 20  # of rewritten files are shown
_BLOCKED = "what it imports is not there on a TPU"


@dataclass(frozen=True)
class AssessQuestion:
    """Arguments of `migrate assess`.

    Attributes:
        project: the folder.
        script: the one that trains, as the user named it: in the project, or from the working directory.
        args: arguments of the script.
        products: the slices to compile for.
        replicas: number of replicas in the short run.
        run_timeout, fit_timeout: seconds for the short run, and for each compilation.
        batch_option: the script's option that is its batch: the largest that fits is looked for; "" for none.
        torchrun: whether the script is given torchrun's variables where its step is found.
        plan, prices, hours: what the runs are, and what is assumed.
    """

    project: Path
    script: Path
    args: tuple[str, ...]
    products: tuple[Slice, ...]
    replicas: int
    run_timeout: float
    fit_timeout: float
    plan: TrainingPlan
    prices: Prices
    hours: Hours
    batch_option: str = ""
    torchrun: bool = False


@dataclass(frozen=True)
class Assessment:
    """The answer: what is known, and what to do."""

    question: AssessQuestion
    known: AssessmentFacts
    decision: Decision


def assess(question: AssessQuestion, tell: Progress) -> Assessment:
    """Find out what there is to know, and decide.

    Raises:
        AssessError: there is no such project or script, or figures that cannot be meant.
        FitError: the script is given no batch to begin with.
        MissingDependencyError: what the run or the compile needs is not installed.
    """
    script = _script(question.project, question.script)
    plan = question.plan
    plan.require_sense()
    if plan.gpu:
        question.prices.of_gpu(plan.gpu)
    if question.batch_option:
        batch_option(question.args, question.batch_option)
    done = rewrite_folder(question.project, progress=tell)
    on_tpu = RewriteOptions(config=Config(target=TPU))
    code_on_tpu = code_of(rewrite_folder(question.project, options=on_tpu, progress=tell), script)
    if names := [str(file.name) for file in done.changed]:
        more = f" and {many(len(names) - _NAMES, 'more file')}" if len(names) > _NAMES else ""
        tell(f"rewrote {', '.join(names[:_NAMES])}{more}")
    code = code_of(done, script)
    if code.blocking:
        ran, fitted = ObservedRun(f"not run: {_BLOCKED}"), Fitted(f"not compiled: {_BLOCKED}")
    else:
        require_installed(*NEEDS["assess"])
        with rewritten_project(done, script) as ready:
            tell(
                f"running some steps of {script.name} on {many(question.replicas, 'simulated replica')}"
            )
            ran = short_run(ready, question.args, question.replicas, question.run_timeout)
            fitted = _fitted(question, ran, ready, tell)
            beyond = tuple(f"{name}, for the run: run it from the project" for name in ready.beyond)
            code = replace(code, unread=code.unread + beyond)
    of_user = question.project, question.script, question.args
    known = AssessmentFacts(*of_user, code, code_on_tpu, ran, fitted)
    decision = decide(known, plan, question.prices, question.hours)
    return Assessment(question, known, decision)


def _fitted(question: AssessQuestion, ran: ObservedRun, ready: Ready, tell: Progress) -> Fitted:
    if ran.failed:
        return Fitted("not compiled: the script does not train here (see the short run)")
    option = question.batch_option
    options = FitOptions(
        question.products,
        args=question.args,
        auto=bool(option),
        batch_option=option,
        torchrun=question.torchrun,
        timeout=question.fit_timeout,
    )
    runs = ScriptTarget(ready.place.inside(ready.script), ready.original)
    try:
        report = fit(str(question.script), options, tell, runs)
    except MigrateError as error:
        return Fitted(str(error))
    batch = f"{option} {batch_option(question.args, option)}" if option else ""
    return Fitted("", report.verdicts, report.notes, batch, report.tried, report.host_seconds)


def _script(project: Path, named: Path) -> Path:
    """The script that the user named, in the project.

    Raises:
        AssessError: there is none, or it lies elsewhere.
    """
    if not project.is_dir():
        raise AssessError(f"{project}: no such folder", "give the folder of the project")
    root = project.resolve()
    for path in (project / named, named):
        if path.is_file():
            if not path.resolve().is_relative_to(root):
                raise AssessError(f"{named}: lies outside of {project}", "name a script in it")
            if path.suffix != ".py":
                raise AssessError(f"{named}: not a Python script", "give the script that trains")
            return path
    scripts = [str(path.relative_to(project)) for path in sorted(project.glob("**/*.py"))[:2000]]
    near = difflib.get_close_matches(str(named), scripts, 3, 0.3)
    remedy = f"near: {', '.join(near)}" if near else "give the script that trains"
    raise AssessError(f"{named}: no such script in {project}", remedy)
