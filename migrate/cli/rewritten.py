"""The rewritten form of a script for as long as a command runs it."""

from __future__ import annotations

import contextlib
from pathlib import Path

from migrate.cli.show import show


def rewritten_for_the_run(script: Path, stack: contextlib.ExitStack) -> Path:
    """Write the rewritten form of `script` to a folder of its own, until `stack` ends; return where.

    What is left to do by hand is shown first: should the run fail, it is the first suspect.
    """
    from migrate.report.text.rewrite import findings_summary
    from migrate.rewrite.story import rewrite
    from migrate.rewrite.temporary import written_apart

    done = rewrite(script)
    show(*findings_summary(done), err=True)
    return stack.enter_context(written_apart(done))
