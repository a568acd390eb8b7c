"""Texts of a program whose summed gradients are multiplied by a factor before its optimizer."""

from __future__ import annotations

from dataclasses import dataclass

from migrate.train.write.counts import CountedSource


@dataclass(frozen=True)
class ScaledGradients:
    """The factor of the summed gradients of an update.

    Attributes:
        position: file and line before which the script multiplies them.
        factor: the factor; with `counted`, its product with the number of elements.
        counted: source of the port with its counts, if the number of elements divides the factor.
    """

    position: str
    factor: float
    counted: CountedSource | None = None

    @property
    def value(self) -> str:
        """The factor as an expression of the number of elements."""
        inverse = 1 / self.factor
        is_part = abs(inverse) > 1.5 and abs(inverse - round(inverse)) < 1e-7 * abs(inverse)
        rounded = float(f"{self.factor:.7g}")
        text = f"1 / {round(inverse)}" if is_part else repr(rounded)
        if self.counted is None:
            return text
        return "1 / elements" if rounded == 1 else f"{text} / elements"

    @property
    def lines(self) -> str:
        """The statement of `apply` that multiplies the gradients."""
        return (
            f"\n    # As the script multiplies them before {self.position}."
            f"\n    factor = {self.value}"
            "\n    grads = jax.tree.map(lambda x: factor * x, grads)"
        )

    @property
    def argument(self) -> str:
        """Further parameter of `apply`, after the gradients."""
        return ", elements" if self.counted else ""

    def counts(self, batches: str, function: str = "count") -> str:
        """The statement that counts the elements of an update.

        Args:
            batches: expression of the inputs of each micro-batch.
            function: name of the function that counts those of one.
        """
        if self.counted is None:
            return ""
        return (
            f"\n    elements = sum({function}(state.params, state.variables, x) for x in {batches})"
        )


# What a program has in place of a factor.
UNSCALED = ScaledGradients("", 1.0)
