"""jax.lax.approx_max_k."""

from __future__ import annotations

from migrate.check.common import NamedHazard
from migrate.check.hazard import Severity, example


class ApproximateTopKHazard(NamedHazard):
    """Approximate top-k is exact wherever tests run.

    **Why.** `jax.lax.approx_max_k` and `approx_min_k` sort exactly on a CPU, whatever `recall_target`
    says. A TPU keeps the best of each of some hundred bins first: of two of the k that share a bin one is
    lost, `1 - recall_target` of the k on average (never the best of all). No test on a CPU can see what
    depends on it.

    **What to do.** `jax.lax.top_k` where the result has to be the same: sampling, routing to experts,
    metrics. Where the approximation is meant, as in a nearest-neighbor search, measure the recall on the
    device (`migrate.parity.tasks.topk`), and say with `# migrate: ignore` that it was.

    Source: docs/parity/precision.md.
    """

    code = "XLA826"
    name = "approximate-top-k"
    severity = Severity.WARNING
    examples = (
        example(
            """
            import jax
            from jax import lax
            from jax.lax import approx_min_k as nearest


            def sample(logits):
                values, tokens = lax.approx_max_k(logits, 40)  # XLA826
                return jax.random.categorical(jax.random.key(0), values), tokens


            search = jax.jit(jax.lax.approx_max_k, static_argnames="k")  # XLA826
            distances, places = nearest([3.0, 1.0, 2.0], k=2, recall_target=0.9)  # XLA826
            """
        ),
        example(
            """
            from jax import lax

            from search import approx_max_k


            def sample(logits):
                approx_max_k(logits, 40)
                return lax.top_k(logits, 40)
            """
        ),
    )
    mended = example(
        """
        import jax
        from jax import lax


        def sample(logits):
            values, tokens = lax.top_k(logits, 40)
            return jax.random.categorical(jax.random.key(0), values), tokens
        """
    )
