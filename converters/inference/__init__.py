"""Inference of the layer of each key without a module: from names, shapes and related keys.

    inference = infer(checkpoint.infos, parse_assumptions(["tok.*=Embedding", "heads=8"]))
    plan = make_plan(checkpoint.source, checkpoint.infos, inference.slots)

Each guess has its evidence and its confidence. An ambiguous guess is refused until the user
decides.
"""

from converters.inference.assume import Assumptions, parse_assumptions
from converters.inference.guess import Confidence, GroupGuess, Guess
from converters.inference.infer import Inference, infer

__all__ = [
    "Assumptions",
    "Confidence",
    "GroupGuess",
    "Guess",
    "Inference",
    "infer",
    "parse_assumptions",
]
