"""Approximate top-k: exact on this machine, not on a TPU, and a token is never sampled.

python examples/parity_precision/top_k.py
"""

import os
import sys
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from migrate.check.config import Config
from migrate.check.file import check_file
from migrate.compiler.program import program_of_jax
from migrate.parity.tasks.topk import bins_of, in_function, kept, topk_section

ROWS, VOCABULARY, K = 256, 32768, 10


def candidates(logits: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The tokens among which one is sampled."""
    return lax.approx_max_k(logits, K, recall_target=0.9)


def main() -> int:
    logits = np.random.default_rng(0).standard_normal((ROWS, VOCABULARY)).astype(np.float32)
    for one in check_file(Path(__file__), Config(select=("XLA826",))):
        print(f"source: {one.path.name}:{one.line}: {one.message}")
    uses = in_function(candidates, jax.ShapeDtypeStruct(logits.shape, jnp.float32))
    for check in topk_section(uses).checks:
        verdict = "pass" if check.passed else "no pass"
        print(f"this device: {check.name.rpartition('/')[2]}: {verdict}, {check.note}")
    bins = bins_of(program_of_jax(candidates, jax.ShapeDtypeStruct(logits.shape, jnp.float32)))
    if isinstance(bins, str):
        print(f"TPU compiler: undetermined, {bins}")
        return 1
    (one,) = bins
    print(f"TPU compiler: {one.operation}: of {one.reduction} elements one survives")
    _, exact = lax.top_k(logits, K)
    found = kept(logits, K, one.reduction)
    lost = [~np.isin(wanted, row) for wanted, row in zip(np.asarray(exact), found, strict=True)]
    share = np.mean(lost, 0)
    print(f"recall with such bins {1 - share.mean():.3f}, asked for {uses[0].recall_target:g}")
    print(
        f"lost: the first {share[0]:.1%} of the time, the second {share[1]:.1%}, the last {share[-1]:.1%}"
    )
    return 0 if share[0] == 0 < share[-1] else 1


if __name__ == "__main__":
    sys.exit(main())
