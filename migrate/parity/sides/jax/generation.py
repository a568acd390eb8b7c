"""Greedy decoding with a JAX side, without a cache."""

from __future__ import annotations

from migrate.parity.ground.errors import ParityError
from migrate.parity.ground.requests import Generated
from migrate.parity.inputs.set import InputSet
from migrate.parity.sides.decoding import Rows
from migrate.parity.sides.jax.model import JaxModel
from migrate.parity.sides.jax.passes import Passes
from migrate.parity.sides.jax.session import Session


def generate(
    passes: Passes, model: JaxModel, session: Session, inputs: InputSet, tokens: int, output: str
) -> Generated:
    """See `Runner.generate` and `decoding`.

    Raises:
        InputsError: there are no `input_ids`.
        ParityError: the model has no such output.
    """
    sequences, margins = [], []
    with session.active():
        weights = session.weights(model)
        for number in range(inputs.count):
            rows = Rows(inputs[number], tokens, model.shown)
            for step in range(tokens):
                outputs, _ = passes.outputs(weights, rows.arrays)
                if output not in outputs:
                    raise ParityError(
                        f"{model.shown}: has no output {output or '(a single tensor)'}",
                        f"its outputs are: {', '.join(outputs)}",
                    )
                rows.append(step, outputs[output])
            sequences.append(rows.tokens())
            margins.append(rows.margins())
    return Generated(tuple(sequences), tuple(margins))
