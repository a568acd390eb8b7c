"""What `migrate fit` of a script costs beside its two compiles: torch_xla's trace, and libtpu's.

    python benchmarks/fit_cost.py SCRIPT [ARGS…]

SCRIPT is in torch_xla's words already; its trace is its run until the step is steady, warm-up steps included.
The compiler is asked, whatever was kept. Exit code 1 where the whole is more than 1.3 times the two.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from history import append

from migrate.fit import pipeline
from migrate.fit.products import products_named

LIMIT = 1.3


def main() -> int:
    """Print seconds: the whole, the trace, libtpu, and the ratio."""
    script, *args = sys.argv[1:]
    tracing = 0.0
    lower = pipeline.lower_script

    def timed(*given: Any, **named: Any) -> Any:
        nonlocal tracing
        started = time.monotonic()
        step = lower(*given, **named)
        tracing += time.monotonic() - started
        return step

    pipeline.lower_script = timed
    options = pipeline.FitOptions(tuple(products_named("v5e-8")), args=tuple(args))
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        found = pipeline.fit(
            script, options, lambda said: None, pipeline.ScriptTarget(Path(script))
        )
    compiling = sum(one.seconds for one in found.verdicts)
    ratio = found.seconds / (tracing + compiling)
    print(
        f"{script}: {found.seconds:.1f} s, {tracing:.1f} s to trace, {compiling:.1f} s of libtpu: {ratio:.2f}"
    )
    case = {
        "figure": f"whole fit of {Path(script).name} ÷ tracing and libtpu",
        "value": f"{ratio:.2f}",
    }
    append("fit", case | {"limit": LIMIT})
    return int(ratio > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
