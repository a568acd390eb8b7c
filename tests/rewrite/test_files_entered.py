"""How many files one must have open to follow an ordinary script through `migrate rewrite`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.waiting import LIMIT

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "launch_torchrun" / "before.py"
# Functions that run, not modules that are imported: each rule and hazard that is asked counts with its file.
TRACER = """
import sys
from pathlib import Path
import migrate
from migrate.cli import main

root = Path(migrate.__file__).parent
files = set()
COMPREHENSIONS = {"<dictcomp>", "<genexpr>", "<listcomp>", "<setcomp>"}

def note(frame, event, arg):
    # Not the body of a module or a class, nor a comprehension in it, which run at its import.
    while frame is not None and frame.f_code.co_name in COMPREHENSIONS:
        frame = frame.f_back
    if event == "call" and frame is not None and frame.f_code.co_flags & 0x02:
        files.add(frame.f_code.co_filename)

sys.setprofile(note)
try:
    main()
finally:
    sys.setprofile(None)
    entered = {str(Path(f).relative_to(root)) for f in files if Path(f).is_relative_to(root)}
    Path(sys.argv[-1]).with_suffix(".entered").write_text("\\n".join(sorted(entered)))
"""
# The rules and hazards of whose words and facts the script holds none are not asked. Of the files that are
# entered, 81 are rules and hazards, or a part of one; 148 are what they ask, the model of the script, the
# engine, the report and the command. Both halves grow with what is found: each idea has a file.
MOST = 229


def test_one_script_enters_no_more_files_than_it_did(tmp_path: Path) -> None:
    out = tmp_path / "after.py"
    done = subprocess.run(
        [sys.executable, "-c", TRACER, "rewrite", str(SCRIPT), "-o", str(out)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    entered = out.with_suffix(".entered").read_text().splitlines()
    assert "rewrite/pipeline.py" in entered
    assert len(entered) <= MOST, f"{len(entered)} files: " + " ".join(entered)
