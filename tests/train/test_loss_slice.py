"""The statements from a batch to its loss, cut out of a script."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import pytest

from migrate.train.errors import TrainError
from migrate.train.frames import Frame
from migrate.train.slice.loss import LossSlice, loss_slice
from migrate.train.slice.text import ScriptText
from tests.train.scripts import NANO


def cut(source: str, function: str = "<module>", changing: Sequence[str] = ()) -> LossSlice:
    """Slice at the line with `backward`."""
    script = ScriptText("train.py", textwrap.dedent(source))
    line = next(n for n, text in enumerate(script.lines, 1) if ".backward(" in text)
    first = 1
    if function != "<module>":
        first = next(n for n, t in enumerate(script.lines, 1) if f"def {function}(" in t)
    return loss_slice(script, Frame(line, function, first), changing)


def test_autocast_is_flattened_and_the_scaler_is_stripped() -> None:
    loss = cut(NANO)
    assert loss.text.splitlines() == [
        "logits, loss = model(X, Y)",
        "loss = loss / gradient_accumulation_steps  # scale the loss",
    ]
    assert loss.result == "loss"
    # the next batch is fetched between the forward and the backward
    assert loss.free == ("model", "X", "Y", "gradient_accumulation_steps")


def test_a_slice_ends_at_the_innermost_loop_and_keeps_comments() -> None:
    loss = cut(
        """
        def fit(model, loader):
            scale = 2.0
            for batch in loader:
                x = batch["x"].to("cpu")
                log(x)
                # the loss of one batch
                loss = model(x).mean()
                count = count + 1
                (loss / scale).backward()
        """,
        "fit",
    )
    assert loss.text == 'x = batch["x"].to("cpu")\n# the loss of one batch\nloss = model(x).mean()'
    assert loss.result == "loss / scale"
    assert loss.free == ("batch", "model", "scale")


def test_rows_that_the_loop_selects_are_the_batch() -> None:
    loss = cut(
        """
        for rows in torch.randperm(n).view(2, -1):
            part, old = ids[rows], olds[rows]
            wanted = kept.values[:, rows]
            loss = (model(part) - old - wanted - shift).mean()
            loss.backward()
        """
    )
    assert loss.text == "loss = (model(part) - old - wanted - shift).mean()"
    assert loss.free == ("model", "part", "old", "wanted", "shift")
    first = cut("for x in loader:\n    y = x[0]\n    model(y).backward()")  # no index of the loop
    assert first.free == ("x", "model")


def test_statements_that_change_what_the_loss_reads_are_in_it() -> None:
    loss = cut(
        """
        for batch in loader:
            labels = batch.pop("labels")
            batch["mask"] = batch["ids"] != 0
            total += 1
            loss = criterion(model(**batch), labels)
            loss.backward()
        """
    )
    assert [line.partition(" ")[0] for line in loss.text.splitlines()] == [
        "labels",
        'batch["mask"]',
        "loss",
    ]


def test_control_flow_out_of_the_slice_is_refused() -> None:
    with pytest.raises(TrainError, match=r"train.py:5: control flow leaves"):
        cut(
            """
            for x in loader:
                if x.sum() > 0:
                    loss = model(x)
                    continue
                loss.backward()
            """
        )


@pytest.mark.parametrize("fetch", ['x, y = get_batch("train")', "x, y = next(batches)"])
def test_what_fetches_a_batch_is_no_part_of_the_loss(fetch: str) -> None:
    loss = cut(
        f"""
        while True:
            {fetch}
            loss = model(x, y)
            loss.backward()
        """
    )
    assert loss.text == "loss = model(x, y)"
    assert loss.free == ("model", "x", "y")


def test_a_loader_that_begins_again_is_no_part_of_the_loss() -> None:
    source = """
    for step in range(100):
        try:
            batch = next(batches)
        except StopIteration:
            epoch += 1
            batches = iter(loader)
            batch = {0}
        loss = model(batch)
        loss.backward()
    """
    loss = cut(source.replace("{0}", "next(batches)"))
    assert (loss.text, loss.free) == ("loss = model(batch)", ("model", "batch"))
    with pytest.raises(TrainError, match="control flow leaves"):
        cut(source.replace("{0}", "first * 2"))


def test_a_batch_that_is_unpacked_first_has_the_names_of_its_parts() -> None:
    body = """
    def step(model, optimizer, batch):
        {0}
        loss = model(ids).masked_fill(~mask, 0.0).sum() / {1}
        loss.backward()
    """
    loss = cut(body.format("ids, mask = batch", "mask.sum()"), "step")
    assert loss.free == ("model", "ids", "mask")
    assert "batch" not in loss.text
    assert loss.unpacked == {"ids": "batch[0]", "mask": "batch[1]"}
    assert cut(body.format("ids, mask = batch", "len(batch)"), "step").free[-1] == "batch"
    # what a model gives is no batch
    for statement in (
        "ids, mask = model(batch)",
        "ids, mask = batch.to(0), batch",
        "(ids, mask), _ = batch",
    ):
        assert not cut(body.format(statement, "2"), "step").unpacked


@pytest.mark.parametrize(
    ("call", "names"),
    [
        ("loss_of(model, *batch)", ["ids", "mask"]),
        ("loss_of(*batch)", ["model", "ids", "mask"]),
        ("loss_of(model, *batch) / len(batch)", []),  # the batch is read elsewhere, too
        ("loss_of(model, *batch) + ids.sum()", []),  # a name of the loop
        ("scaled(model, *batch)", []),  # two items, or three
        ("every(model, *batch)", []),
        ("loss_of(model, *batch, mask=mask)", []),
        ("library.loss_of(model, *batch)", []),
    ],
)
def test_a_batch_that_is_spread_has_the_names_of_parameters(call: str, names: list[str]) -> None:
    source = f"""
    def loss_of(model, ids, mask):
        return model(ids)[mask].mean()

    def scaled(model, ids, mask, factor=1.0):
        return model(ids)[mask].mean() * factor

    def every(model, *parts):
        return model(*parts).mean()

    for batch in loader:
        loss = {call}
        loss.backward()
    """
    loss = cut(source)
    assert list(loss.selected) == names
    assert loss.unpacked == loss.selected
    assert ("*batch" in loss.text) is not bool(names)
    assert ("batch" in loss.free) is not bool(names)
    if names:
        assert loss.selected["ids"] == f"batch[{names.index('ids')}]"


def test_what_a_changing_number_selects_belongs_to_the_data() -> None:
    source = """
        for batch in loader:
            for k in range(2):
                part = {key: value[k * rows:(k + 1) * rows] for key, value in batch.items()}
                x = part["x"] * 2
                loss = model(x).mean()
                loss.backward()
        """
    assert cut(source).free == ("k", "rows", "batch", "model")
    loss = cut(source, changing=["k"])
    assert loss.text.splitlines()[0] == 'x = part["x"] * 2'
    assert loss.free == ("part", "model")


SELECTED = """
    def ppo_loss(agent, tokens, ret, clip):
        return agent(tokens, ret), clip


    for start in range(0, 8, 4):
        idx = torch.from_numpy(rows[start : start + 4])
        loss, kl = ppo_loss(agent, buffer.tokens[idx], buffer.ret.long()[idx], clip=cfg.clip)
        loss.backward()
"""


def test_arguments_that_select_the_batch_are_names_of_it() -> None:
    loss = cut(SELECTED, changing=["buffer"])
    assert loss.text == "loss, kl = ppo_loss(agent, tokens, ret, clip=cfg.clip)"
    assert loss.free == ("ppo_loss", "agent", "tokens", "ret", "cfg")
    assert loss.selected == {"tokens": "buffer.tokens[idx]", "ret": "buffer.ret.long()[idx]"}
    assert not cut(SELECTED).selected


@pytest.mark.parametrize(
    ("call", "names"),
    [
        ("agent(buffer.tokens[idx], cfg.clip)", ["buffer_tokens_idx"]),
        ("ppo_loss(agent, buffer.tokens[idx], ret=buffer.ret[idx])", ["tokens", "ret"]),
        ("agent(ppo_loss(agent, buffer.tokens[idx], buffer.tokens[idx]))", ["tokens"]),
        ("ppo_loss(agent, embed(buffer.tokens[idx]))", ["buffer_tokens_idx"]),
        ("ppo_loss(agent, idx[0], buffer)", []),  # an object is no batch
    ],
)
def test_selections_have_the_names_of_parameters(call: str, names: list[str]) -> None:
    source = SELECTED.replace(
        "ppo_loss(agent, buffer.tokens[idx], buffer.ret.long()[idx], clip=cfg.clip)", call
    )
    loss = cut(source, changing=["buffer"])
    assert list(loss.selected) == names
    assert ("buffer" in loss.free) == (not names)


def test_a_selection_of_what_the_loss_computes_is_refused() -> None:
    source = """
        for rows in order:
            x = model(batch.x)
            loss = (criterion(model, x.view()[rows]) - x).mean()
            loss.backward()
        """
    with pytest.raises(TrainError, match=r"train.py:3: x is computed among the statements"):
        cut(source, changing=["rows"])


def test_a_value_of_the_model_is_computed_from_the_selected_batch() -> None:
    source = """
        for rows in order:
            target = targets[rows]
            logits = model(inputs[rows])
            loss = criterion(logits, target)
            loss.backward()
        """
    assert cut(source, changing=["rows"]).free == ("criterion", "logits", "target")
    script = ScriptText("train.py", textwrap.dedent(source))
    loss = loss_slice(script, Frame(6, "<module>", 1), ["rows"], ["logits"])
    assert loss.free == ("model", "inputs_rows", "criterion", "target")


def test_names_that_a_block_binds_itself_are_not_read_from_outside() -> None:
    loss = cut(
        """
        for x in loader:
            with torch.inference_mode():
                states = teacher(x)
                wanted = states.mean()
            if mode == "a":
                weight = 1.0
            else:
                weight = 2.0
            def scaled(value):
                half = value / 2
                return half * weight
            loss = (scaled(model(x)) - wanted).square().mean()
            loss.backward()
        """
    )
    assert loss.free == ("torch", "teacher", "x", "mode", "model")


MIXED = """
    for x, y in loader:
        x = x.to("cpu")
        y = y.to("cpu")
        if mix is not None:
            x, y = mix(x, y)
        y = y.float()
        loss = criterion(model(x), y)
        loss.backward()
"""


def test_what_gave_a_name_before_a_statement_of_the_data_belongs_to_the_data() -> None:
    assert "x.to(" in cut(MIXED).text
    loss = cut(MIXED, changing=["mix"])
    assert loss.text == "y = y.float()\nloss = criterion(model(x), y)"
    assert loss.free == ("y", "criterion", "model", "x")
