"""Many small programs, judged in one process: `python -m tests.fit.planted.together CASES ANSWER`.

What `migrate fit` does in two processes for each program, with its own functions in the same order; only the
processes are one, as each of them costs more than such a program.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ |= {"JAX_PLATFORMS": "cpu", "PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "1"}
os.environ |= {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}

from migrate.compiler import child
from migrate.compiler.compile import answered, request
from migrate.fit import cache
from migrate.fit.judge import judge
from migrate.fit.lowered.child import lower
from migrate.fit.lowered.start import read_program
from migrate.fit.lowered.step import Step, Wanted
from migrate.fit.products import Product, product_named
from tests.waiting import LIMIT

HERE = Path(__file__).parent
MODELS = HERE / "models.py"


def step_of(case: dict[str, Any], product: Product, folder: Path) -> Step:
    """The program of a case."""
    if "program" in case:
        from tests.fit.planted.programs import PROGRAMS

        file = folder / f"{case['program']}.mlir"
        file.write_text(PROGRAMS[case["program"]]())
        return read_program(file)
    rules = folder / "rules.yaml"
    rules.write_text(case.get("rules", ""))
    return lower(
        Wanted(
            f"{MODELS}:{case['model']}",
            (case["inputs"],),
            case.get("train", ""),
            mesh=case.get("mesh", {}),
            rules=str(rules) if "rules" in case else "",
            devices=product.devices,
        )
    )


def keep_answer(step: Step, product: Product) -> None:
    """Ask the compiler in this process, and keep what it says where `judge` looks for it."""
    (part,) = step.parts
    cache.compiled(
        part.program,
        product,
        product.devices,
        {},
        lambda: answered(
            child.answer(
                request(part.program, [{}], product.topology, product.options, product.devices)
            )
        ),
    )


def judged(case: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The verdict, and what is wasted with its lines."""
    product = product_named(case.get("slice", "v5e-1"))
    step = step_of(case, product, folder)
    keep_answer(step, product)
    found = judge(step, product, timeout=LIMIT)
    return {
        "state": found.state,
        "where": found.where,
        "largest": found.memory.largest[0].source if found.memory else "",
        "waste": [[one.kind, one.source] for one in found.waste],
    }


def main(cases: Path, answer: Path) -> None:
    """Write {name: verdict}."""
    found = {}
    for name, case in json.loads(cases.read_text()).items():
        print(name, flush=True)  # noqa: T201
        found[name] = judged(case, answer.parent)
    answer.write_text(json.dumps(found))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
