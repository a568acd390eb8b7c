"""What `migrate fit --json` prints is what its schema says."""

from __future__ import annotations

import io
import json
from importlib.util import find_spec
from pathlib import Path

import jsonschema
import pytest
from rich.console import Console

import migrate.report.schema
from migrate.fit.products import product_named
from migrate.fit.verdict import FitReport, FitVerdict, SliceResult
from migrate.report.html.fit import write_fit_page
from migrate.report.text.fit import fit_as_json, fit_summary
from tests.fit.here import Here

SCHEMA = json.loads(Path(migrate.report.schema.__file__).with_name("fit.json").read_text())
MODELS = Path(__file__).with_name("models.py")


def test_what_was_not_found_out_has_the_same_form() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    silent = FitVerdict(product_named("v5e-8"), "undetermined", "no answer in 5 s")
    said = fit_as_json(FitReport("train.py", True, (silent,))) | {
        "changes": [],
        "limits_passed": [],
    }
    jsonschema.Draft202012Validator(SCHEMA).validate(said)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(SCHEMA).validate(said | {"more": 1})


def test_a_remedy_that_could_not_be_tried_is_told_in_each_form(tmp_path: Path) -> None:
    silent = FitVerdict(product_named("v5e-8"), "undetermined", "no answer in 5 s")
    untried = SliceResult("shard: net.py:Net: a torch module runs as replicas", ())
    found = FitReport("net.py:Net", True, (silent,), tried=(untried,))
    said = fit_as_json(found) | {"changes": [], "limits_passed": []}
    jsonschema.Draft202012Validator(SCHEMA).validate(said)
    stream = io.StringIO()
    console = Console(file=stream, width=200)
    for one in fit_summary(found):
        console.print(one)
    assert untried.what in stream.getvalue()
    page = tmp_path / "page.html"
    write_fit_page(found, page)
    assert untried.what in page.read_text()


@pytest.mark.skipif(find_spec("libtpu") is None, reason="libtpu is not installed")
def test_a_compiled_step_has_the_form(here: Here) -> None:
    command = (f"{MODELS}:Tower", "--inputs", "x=float32[64,512]", "--train", "adamw")
    said = here.fitted(*command, "--try", "batch")
    jsonschema.Draft202012Validator(SCHEMA).validate(said)
    assert said["slices"][0]["collectives"]
    assert said["slices"][0]["hbm"]["largest"]
    assert said["tried"]
