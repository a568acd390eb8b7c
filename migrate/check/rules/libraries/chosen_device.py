"""A library chooses its device itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import libcst as cst

from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.model.calls.kind import Kind
from migrate.reading.facts import Facts
from migrate.syntax.tree import code, keyword, last_part, string_value


class Chooser(NamedTuple):
    """A library call that chooses CUDA if it gets no device.

    Attributes:
        position: which of its arguments the device is. None if it is only given by name.
        names: the keywords that say where.
        models: the keywords of a model that it moves there.
        raises: whether it takes CUDA without asking whether there is a GPU.
        mend: what to give it in place of a device, if it takes none.
    """

    position: int | None
    names: tuple[str, ...] = ("device",)
    models: tuple[str, ...] = ()
    raises: bool = False
    mend: str = ""


_ENCODER = Chooser(None, models=("modules", "model_name_or_path"))
_CROSS = Chooser(None, ("device", "default_device"), ("modules",))
CHOOSERS = {
    "sentence_transformers.SentenceTransformer": _ENCODER,
    "sentence_transformers.CrossEncoder": _CROSS,
    "sentence_transformers.cross_encoder.CrossEncoder": _CROSS,
    "sentence_transformers.SparseEncoder": _ENCODER,
    "sentence_transformers.sparse_encoder.SparseEncoder": _ENCODER,
    "transformers.pipeline": Chooser(None, ("device", "device_map"), ("model",)),
    "transformers.pipelines.pipeline": Chooser(None, ("device", "device_map"), ("model",)),
    "whisper.load_model": Chooser(1),
    "clip.load": Chooser(1),
    "ImageReward.load": Chooser(1),
    "bert_score.BERTScorer": Chooser(None),
    "bert_score.score": Chooser(None),
    "pyiqa.create_metric": Chooser(None),
    "laion_clap.CLAP_Module": Chooser(None),
    "dreamsim.dreamsim": Chooser(1, raises=True),
    "face_alignment.FaceAlignment": Chooser(2, raises=True),
    "mmdet.apis.init_detector": Chooser(3, raises=True),
    "mmpose.apis.init_model": Chooser(2, raises=True),
    "mmseg.apis.init_model": Chooser(2, raises=True),
    "torch_fidelity.calculate_metrics": Chooser(None, ("cuda",), raises=True, mend="cuda=False"),
    **dict.fromkeys(
        (
            f"cleanfid.fid.{name}"
            for name in (
                *("compute_fid", "compute_kid", "fid_folder", "fid_model"),
                *("get_folder_features", "make_custom_stats"),
            )
        ),
        Chooser(None, raises=True),
    ),
    **dict.fromkeys(
        (
            f"facexlib.{part}.init_{part}_model"
            for part in (
                *("alignment", "assessment", "detection", "headpose", "matting", "parsing"),
                "recognition",
            )
        ),
        Chooser(2, raises=True),
    ),
}
PRETRAINED = "from_pretrained"
MAPS = frozenset({"auto", "balanced", "balanced_low_0", "sequential"})
PIPELINES = frozenset({"transformers.pipeline", "transformers.pipelines.pipeline"})


class ChosenDevice(Hazard):
    """A library chooses its device itself.

    **Why.** `SentenceTransformer(…)`, `CrossEncoder(…)`, `transformers.pipeline(…)`, `whisper.load_model(…)`
    and others ask `torch.cuda.is_available()` where they are given no device: on a TPU host they take the
    CPU. A model that they are given is moved there; if it is the one that is trained, the next step raises,
    and where only one replica does it, the others wait for ever. `pipeline(…, device=0)` is the CPU, too, and
    so is `from_pretrained(…, device_map="auto")`; `device_map={"": 0}` raises. The default of `dreamsim()`,
    clean-fid, `FaceAlignment(…)`, facexlib and others is CUDA: they raise.

    **What to do.** `device="xla"`, inside the worker. A model that is trained is better given as a copy on
    the CPU, with `device="cpu"`: each new length of text compiles anew on XLA. In place of `device_map`,
    `model.to("xla")`.

    Source (read): sentence-transformers 5.7, transformers 5.23, dreamsim 0.2.1, clean-fid 0.1.35,
    torch-fidelity 0.4, face-alignment 1.5, facexlib 0.3, mmdet 3.3, mmsegmentation 1.2, mmpose 1.3.
    """

    code = "XLA418"
    name = "chosen-device"
    severity = Severity.WARNING
    words = (
        r"sentence_transformers|\bpipeline\b|whisper|\bclip\b|ImageReward|bert_score|pyiqa|laion_clap"
        "|device_map|dreamsim|face_alignment|mmdet|mmpose|mmseg|torch_fidelity|cleanfid|facexlib"
    )
    nodes = (cst.Call,)
    examples = (
        example(
            """
            import torch
            import whisper
            from cleanfid import fid
            from dreamsim import dreamsim
            from sentence_transformers import CrossEncoder, SentenceTransformer
            from transformers import AutoModel, pipeline


            def evaluate(model, tokenizer, texts):
                model.to("xla")
                encoder = SentenceTransformer("all-MiniLM-L6-v2")  # XLA418
                ranker = CrossEncoder("some/ranker", device=None)  # XLA418
                reader = whisper.load_model("base")  # XLA418
                wrapped = SentenceTransformer(modules=[model])  # XLA418 error
                generate = pipeline("text-generation", model=model, tokenizer=tokenizer)  # XLA418 error
                other = pipeline("fill-mask", device=0)  # XLA418
                big = AutoModel.from_pretrained("some/model", device_map="auto")  # XLA418
                similarity, _ = dreamsim(pretrained=True)  # XLA418 error
                score = fid.compute_fid("real", "generated")  # XLA418 error
                return encoder.encode(texts)
            """
        ),
        example(
            """
            import whisper
            from dreamsim import dreamsim
            from sentence_transformers import SentenceTransformer
            from transformers import pipeline


            def evaluate(texts, device, options):
                similarity, _ = dreamsim(True, device)
                reader = whisper.load_model("base", device)
                encoder = SentenceTransformer("all-MiniLM-L6-v2", device="cpu")
                other = SentenceTransformer("all-MiniLM-L6-v2", **options)
                summarize = pipeline("summarization", device_map="cpu")
                translate = pipeline("translation", device=-1)
                return encoder.encode(texts)
            """
        ),
    )
    mended = example(
        """
        from sentence_transformers import SentenceTransformer


        def evaluate(texts):
            return SentenceTransformer("all-MiniLM-L6-v2", device="xla").encode(texts)
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield a call that is given no device."""
        assert isinstance(node, cst.Call)
        name = facts.names.of(node.func) or ""
        if last_part(node.func) == PRETRAINED:
            yield from self._mapped(node)
            return
        chooser = CHOOSERS.get(name)
        if chooser is None or facts.context.calls.is_local(name):
            return
        if any(arg.star for arg in node.args) or _says_where(node, chooser, name, facts):
            return
        ours = "shims.device()" if facts.context.portable else '"xla"'
        if chooser.raises:
            mend = chooser.mend or f"device={ours}"
            message = f"{code(node.func)} takes CUDA by default and raises on a TPU host: {mend}"
            yield self.hit(node, message, Severity.ERROR)
            return
        model = next((m for m in _models(node, chooser) if _holds_model(m, facts)), None)
        if model is None:
            message = (
                f"{code(node.func)} asks for CUDA and takes the CPU on a TPU host: device={ours}"
            )
            yield self.hit(node, message)
            return
        message = (
            f"{code(node.func)} asks for CUDA and moves `{code(model)}` to the CPU on a TPU host: "
            f"device={ours}, or give it a copy"
        )
        yield self.hit(node, message, Severity.ERROR)

    def _mapped(self, call: cst.Call) -> Iterable[Hit]:
        """Yield `from_pretrained(…, device_map="auto")`."""
        placed = keyword(call, "device_map")
        if placed is not None and _picks(placed.value):
            does = "raises" if isinstance(placed.value, cst.Dict) else "is the CPU"
            yield self.hit(
                call,
                f"device_map={code(placed.value)} {does} on a TPU host: leave it out and move the model",
            )


def _picks(value: cst.BaseExpression) -> bool:
    """Whether a map of devices leaves the choice to accelerate, or names GPUs by number."""
    if isinstance(value, cst.Dict):
        parts = (
            element.value for element in value.elements if isinstance(element, cst.DictElement)
        )
        return any(isinstance(part, cst.Integer) for part in parts)
    return string_value(value) in MAPS


def _says_where(call: cst.Call, chooser: Chooser, name: str, facts: Facts) -> bool:
    devices = [arg.value for key in chooser.names if (arg := keyword(call, key)) is not None]
    positional = [arg.value for arg in call.args if arg.keyword is None]
    if chooser.position is not None:
        devices += positional[chooser.position : chooser.position + 1]
    if name in PIPELINES:  # of a number that is no GPU's they make the CPU
        devices = [value for value in devices if not isinstance(value, cst.Integer)]
    return any(not _is_none(value, facts) for value in devices)


def _is_none(value: cst.BaseExpression, facts: Facts) -> bool:
    """Whether `value` is None, or a parameter that is, for which nothing in the project passes a device."""
    if not isinstance(value, cst.Name) or value.value == "None":
        return code(value) == "None"
    _, parameter = facts.context.bound_to(value)
    default = parameter.default if isinstance(parameter, cst.Param) else None
    if default is None or code(default) != "None":
        return False
    return facts.context.place(value) not in facts.context.calls.devices


def _models(call: cst.Call, chooser: Chooser) -> Iterable[cst.BaseExpression]:
    for name in chooser.models:
        arg = keyword(call, name)
        if arg is not None:
            yield arg.value


def _holds_model(value: cst.BaseExpression, facts: Facts) -> bool:
    """Whether `value` is a module, or a list or a container of such."""
    if isinstance(value, cst.List | cst.Tuple):
        return any(_holds_model(element.value, facts) for element in value.elements)
    return not isinstance(value, cst.BaseString) and facts.values.kind(value) is Kind.MODEL
