"""The forms of `--assume`."""

import pytest

from converters.errors import AssumptionError
from converters.inference import parse_assumptions


@pytest.mark.parametrize(
    ("text", "kind", "options", "matches", "not_matched"),
    [
        ("heads=8", "", {"heads": 8}, "anything", None),
        ("tok.*=Embedding", "Embedding", {}, "tok_embed", "my_tok"),
        (r"encoder\..*\.attn: heads=4", "", {"heads": 4}, "encoder.0.attn", "encoder.0.attn.q"),
        (r"a(?=b).*=MultiheadAttention(heads=2)", "MultiheadAttention", {"heads": 2}, "ab", "ac"),
        ("up=ConvTranspose2d(groups=3)", "ConvTranspose", {"groups": 3}, "up", "ups"),
        ("ln=LayerNorm", "norm", {}, "ln", "l"),
        ("net=Sequential", "Sequential", {}, "net", "net.0"),
    ],
)
def test_forms(text, kind, options, matches, not_matched):
    (assumption,) = parse_assumptions([text]).all
    assert (assumption.kind, dict(assumption.options)) == (kind, options)
    assert assumption.matches(matches)
    assert not_matched is None or not assumption.matches(not_matched)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "is not an assumption"),
        ("nothing", "is not an assumption"),
        ("a=Liner", "no kind Liner"),
        ("(a=Linear", "no regular expression"),
        ("a=Linear(head=2)", "is not an option"),
        ("a=MultiheadAttention(heads=0)", "is not an option"),
        ("heads=0", "is not an option"),
        ("=Linear", "is not an assumption"),
    ],
)
def test_what_is_none(text, part, refused):
    with refused(AssumptionError, part):
        parse_assumptions([text])


def test_the_first_that_matches_decides():
    assumptions = parse_assumptions(["a=Linear", ".*=Embedding", "a: heads=2", "heads=4"])
    assert assumptions.kind_for(["a"]).kind == "Linear"
    assert assumptions.kind_for(["b"]).kind == "Embedding"
    assert assumptions.options_for("a")[0] == {"heads": 2}
    assert assumptions.options_for("b")[0] == {"heads": 4}
