"""Models of transformers: with the module every key has its place and comes back; without it none is wrong.

`python benchmarks/weights_zoo.py` measures all types that can be built and prints the table.
"""

import warnings

import pytest

from tests.converters.zoo.measure import measure
from tests.converters.zoo.tiny import ALL_TYPES, NotBuiltError

# Linear and Embedding; Conv1D; experts and routers; BatchNorm; a bare projection; weight_norm; ties and
# ConvTranspose; MultiheadAttention.
FEW = ("bert", "gpt2", "mixtral", "resnet", "clip", "wav2vec2", "sam", "siglip")


def check(found):
    assert found.refused == ()
    assert found.inexact == ()
    assert found.unlike == ()
    for api, outcomes in found.outcomes.items():
        assert sum(outcomes.values()) == found.keys, api
    for shares in (found.alone, found.assuming):
        assert shares.wrong_keys == ()
        assert shares.right + shares.refused == found.keys


@pytest.mark.parametrize("model_type", FEW)
def test_a_few(model_type):
    found = measure(model_type)
    check(found)
    assert found.assuming.refused == 0
    assert bool(found.assumptions) == bool(found.alone.refused)


def test_the_measure_can_fail():
    """A Linear whose name says Embedding: the measure must call that wrong."""
    from torch import nn

    from converters.checkpoint.state_dict import StateDict
    from converters.inference import infer
    from converters.mapping import read_slots
    from tests.converters.zoo.measure import shares

    model = nn.Module()
    model.tok_embed = nn.Linear(3, 5, bias=False)
    inference = infer(StateDict("x", model.state_dict()).infos)
    assert shares(inference, read_slots(model)).wrong == 1


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_all_that_can_be_built():
    built = 0
    right = keys = 0
    for model_type in ALL_TYPES:
        try:
            with warnings.catch_warnings():  # of transformers' own code, for sizes it finds odd
                warnings.simplefilter("ignore")
                found = measure(model_type)
        except NotBuiltError:
            continue
        check(found)
        built += 1
        right += found.alone.right
        keys += found.keys
    assert built >= 400
    assert right / keys > 0.95
