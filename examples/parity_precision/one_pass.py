"""The top token flips between one bf16 pass and six: a float32 model, the TPU's precision emulated.

python examples/parity_precision/one_pass.py
"""

import sys

import torch
from language_model import Logits, decode, first_differences, prompts

from migrate.parity.emulate.torch_mode import emulated


def main() -> int:
    torch.set_num_threads(1)  # the model is tiny
    model, ids = Logits(), prompts()
    runs = {}
    for precision in ("default", "highest"):
        with emulated(precision) as seen:
            runs[precision] = decode(model, ids)
        print(f"{precision}: {sum(seen.emulated.values())} products in passes")
        if seen.unhandled:
            print(f"not emulated: {', '.join(sorted(seen.unhandled))}")
            return 1
    plain = decode(model, ids)
    exact = decode(model.double(), ids)
    print(
        f"float32 on the CPU parts from float64 in {len(first_differences(plain, exact))} of {len(ids)} rows"
    )
    print(f"six passes part from float64 in {len(first_differences(runs['highest'], exact))}")
    flips = first_differences(runs["default"], exact)
    print(f"one pass parts from float64 in {len(flips)}:")
    typical = float(exact.margins.median())
    for row, step in flips:
        print(
            f"  row {row}, token {step}: {int(exact.tokens[row, step])} becomes "
            f"{int(runs['default'].tokens[row, step])}; in float64 it won by "
            f"{float(exact.margins[row, step]):.1e}, the other now wins by "
            f"{float(runs['default'].margins[row, step]):.1e}, the median is {typical:.1e}"
        )
    agree = torch.equal(plain.tokens, exact.tokens) and torch.equal(
        runs["highest"].tokens, exact.tokens
    )
    return 0 if agree and flips else 1


if __name__ == "__main__":
    sys.exit(main())
