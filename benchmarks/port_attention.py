"""Memory of a port with `--attention` under the TPU's compiler: splash attention beside XLA's products.

    python benchmarks/port_attention.py [--chips v5e,v6e] [--steps inference,training]

Two layers with the widths of Llama 3.2 1B and 4 × 1,024 tokens, as in `port_tpu.py`, are ported with
`--attention auto` and `--attention xla`, and compiled ahead of time. Exit code 1 if "auto" does not bring the
kernel into the program, or the kernel saves nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import warnings
from pathlib import Path

os.environ |= {"HF_HUB_OFFLINE": "1", "JAX_PLATFORMS": "cpu"}
sys.path.insert(0, str(Path(__file__).parents[1]))

from history import append

from benchmarks.port_tpu import CASES, STEPS, TIMEOUT, TOPOLOGIES, ported, program
from migrate.compiler.compile import compile_for_tpu

KERNEL = 'custom_call_target="tpu_custom_call"'


def main() -> int:
    """Compile, print and append to the history."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--chips", default=",".join(TOPOLOGIES))
    parser.add_argument("--steps", default=",".join(STEPS))
    options = parser.parse_args()
    chips, steps = options.chips.split(","), options.steps.split(",")
    for words, known in ((chips, TOPOLOGIES), (steps, STEPS)):
        if unknown := set(words) - set(known):
            parser.error(f"{', '.join(sorted(unknown))}: unknown; known are {', '.join(known)}")
    warnings.filterwarnings("ignore")
    case, failed = CASES["llama"], False
    with tempfile.TemporaryDirectory() as folder:
        sides = {name: ported(case, Path(folder), name) for name in ("xla", "auto")}
        for step in steps:
            programs = {name: program(side, case, step) for name, side in sides.items()}
            for chip in chips:
                label = f"{case.name}: {step}, {chip}"
                compiled = {
                    name: compile_for_tpu(each, [{}], topology=TOPOLOGIES[chip], timeout=TIMEOUT)
                    for name, each in programs.items()
                }
                for name, answer in compiled.items():
                    if answer.undetermined:
                        raise SystemExit(f"{label}, {name}: {answer.undetermined}")
                xla, auto = (compiled[name].stats[0].temporaries for name in ("xla", "auto"))
                kernels = compiled["auto"].texts[0].count(KERNEL)
                row = {
                    "program": label,
                    "temporaries with XLA, MB": round(xla / 1e6, 1),
                    "with splash attention, MB": round(auto / 1e6, 1),
                    "splash ÷ XLA": round(auto / xla, 3),
                    "kernels": kernels,
                }
                print(", ".join(f"{key}: {value}" for key, value in row.items()), flush=True)
                append("port-attention", row)
                failed |= not kernels or auto >= xla
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
