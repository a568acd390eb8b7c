"""Every hazard's examples, as the hazard carries them."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.catalogue import catalogue
from migrate.check.check import check_source
from migrate.check.common import CudaHazard, NamedHazard
from migrate.check.config import Config
from migrate.check.hazard import Hazard, HazardExample, Severity, example
from migrate.check.rules import all_hazards
from migrate.syntax.source import parse

EXAMPLES = [
    pytest.param(hazard, one, id=f"{hazard.code}-{number}")
    for hazard in all_hazards()
    for number, one in enumerate(hazard.examples)
]


@pytest.mark.parametrize(("hazard", "one"), EXAMPLES)
def test_example(hazard: Hazard, one: HazardExample) -> None:
    source = parse(one.script.encode(), Path("script.py"))
    found = check_source(source, Config(select=(hazard.code,), target=hazard.shown_on))
    reported = {finding.line: finding.severity for finding in found}
    assert reported == one.expected(hazard.code, hazard.severity)


NAMED = [one for one in all_hazards() if type(one).find in (NamedHazard.find, CudaHazard.find)]


@pytest.mark.parametrize("hazard", NAMED, ids=lambda hazard: hazard.code)
def test_a_named_hazard_has_names(hazard: Hazard) -> None:
    names = catalogue.entries(hazard.shown_on)
    entries = [entry for entry in names if entry.code == hazard.code]
    assert entries, (
        f"no entry of a tuple that migrate/catalogue/catalogue.py reads has {hazard.code}"
    )


@pytest.mark.parametrize("hazard", all_hazards(), ids=lambda hazard: hazard.code)
def test_what_is_mended_is_reported_by_no_hazard(hazard: Hazard) -> None:
    script = hazard.mended.script
    compile(script, hazard.code, "exec")
    config = Config(target=hazard.shown_on)
    found = check_source(parse(script.encode(), Path("script.py")), config)
    assert [one for one in found if one.code == hazard.code] == []
    assert [one.code for one in found if one.severity is not Severity.INFO] == []


def test_a_hazard_without_its_page_or_examples_does_not_register() -> None:
    marked, plain = example("x  # XLA199"), example("x")
    with pytest.raises(TypeError, match="ends in # XLA199"):

        class _NotFound(Hazard):
            """**Why.** So. **What to do.** This."""

            code, name, severity, nodes = "XLA199", "not-found", Severity.INFO, ()
            examples = (plain,)

    with pytest.raises(TypeError, match="left alone"):

        class _NothingLeftAlone(Hazard):
            """**Why.** So. **What to do.** This."""

            code, name, severity, nodes = "XLA199", "nothing", Severity.INFO, ()
            examples = (marked,)

    with pytest.raises(TypeError, match="mended"):

        class _NotMended(Hazard):
            """**Why.** So. **What to do.** This."""

            code, name, severity, nodes = "XLA199", "not-mended", Severity.INFO, ()
            examples = (marked, plain)

    with pytest.raises(TypeError, match="What to do"):

        class _NoPage(Hazard):
            """**Why.** So."""

            code, name, severity, nodes = "XLA199", "no-page", Severity.INFO, ()
            examples = (marked, plain)

    with pytest.raises(TypeError, match="not a code"):

        class _NoCode(Hazard):
            """**Why.** So. **What to do.** This."""

            code, name, severity, nodes = "TPU1", "no-code", Severity.INFO, ()
            examples = (marked, plain)
