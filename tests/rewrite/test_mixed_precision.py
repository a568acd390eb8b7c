"""Mixed precision and what wraps a model or an optimizer: spellings, and what must stay."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.rewrite.pipeline import rewrite_source
from migrate.rewrite.results import Rewrite
from migrate.syntax.source import parse


def run(script: str) -> Rewrite:
    data = (textwrap.dedent(script).strip() + "\n").encode()
    return rewrite_source(parse(data, Path("script.py")))


def text(script: str) -> str:
    return run(script).data.decode()


def reports(script: str, rule: str) -> list[str]:
    return [note.message for note in run(script).findings if note.rule == rule]


BFLOAT16 = 'torch.autocast("xla", dtype=torch.bfloat16'


class TestAutocast:
    @pytest.mark.parametrize(
        ("before", "after"),
        [
            ("torch.cuda.amp.autocast()", f"{BFLOAT16})"),
            (
                "torch.cuda.amp.autocast(scaler is not None)",
                f"{BFLOAT16}, enabled=scaler is not None)",
            ),
            ("torch.cuda.amp.autocast(True, torch.float16)", f"{BFLOAT16}, enabled=True)"),
            ("torch.cuda.amp.autocast(dtype=torch.bfloat16)", f"{BFLOAT16})"),
            ("torch.cuda.amp.autocast(enabled=False)", f"{BFLOAT16}, enabled=False)"),
            ('torch.autocast("cuda")', f"{BFLOAT16})"),
            ('torch.autocast("cuda", torch.half, args.amp)', f"{BFLOAT16}, enabled=args.amp)"),
            (
                'torch.amp.autocast(device_type="cuda", cache_enabled=False)',
                'torch.amp.autocast(device_type="xla", dtype=torch.bfloat16, cache_enabled=False)',
            ),
            (
                "torch.autocast(device_type=self.kind, dtype=torch.float16)",
                "torch.autocast(device_type=self.kind, dtype=torch.bfloat16)",
            ),
            ("torch_xla.amp.autocast(torch_xla.device())", f"{BFLOAT16})"),
        ],
    )
    def test_every_spelling(self, before: str, after: str) -> None:
        script = f"import torch\nimport torch_xla.amp\n\nwith {before}:\n    y = model(x)\n"
        assert f"with {after}:" in text(script)

    def test_an_alias_and_a_local_class_of_that_name(self) -> None:
        script = """
            import torch
            from torch.cuda import amp as mixed
            from regions import autocast

            with mixed.autocast(), autocast(), torch.no_grad():
                y = model(x)
        """
        assert f"with {BFLOAT16}), autocast(), torch.no_grad():" in text(script)

    def test_a_region_that_is_chosen_by_name(self) -> None:
        script = "import torch\n\nregion = torch.cuda.amp.autocast if amp else nothing\n"
        after = run(script).data.decode()
        region = 'functools.partial(torch.autocast, "xla", dtype=torch.bfloat16)'
        assert f"region = {region} if amp else nothing\n" in after
        script = "import torch\n\nregion = torch.cuda.amp.autocast\n"
        assert f"functools.partial({BFLOAT16.replace('(', ', ', 1)})" in text(script)

    def test_a_type_by_a_condition(self) -> None:
        script = """
            import torch

            kind = torch.bfloat16 if new else torch.float16
            other = torch.float16
            with torch.autocast("cuda", dtype=kind):
                y = model(x)
        """
        after = text(script)
        assert "kind = torch.bfloat16\n" in after
        assert "other = torch.float16" in after

    def test_for_the_cpu_it_stays(self) -> None:
        script = "import torch\n\nwith torch.autocast('cpu', dtype=torch.float16):\n    y = f(x)\n"
        assert not run(script).changed

    def test_handed_on_to_other_modules(self) -> None:
        assert reports("from torch.cuda.amp import autocast as amp  # noqa: F401", "autocast")


class TestCompile:
    def test_an_if_with_more_in_it_stays(self) -> None:
        script = """
            import torch

            if args.compile:
                print("compiling")
                model = torch.compile(model)  # slow
            model.train()
        """
        after = text(script)
        assert 'if args.compile:\n    print("compiling")\nmodel.train()' in after

    def test_an_if_that_asks_by_a_call_stays_and_parses(self) -> None:
        script = """
            import torch

            if ready():
                model = torch.compile(model)
        """
        after = text(script)
        assert "if ready():" in after
        compile(after, "script.py", "exec")

    @pytest.mark.parametrize("backend", ["openxla", "aot_eager"])
    def test_a_backend_that_runs_stays(self, backend: str) -> None:
        script = f"import torch\n\nmodel = torch.compile(model, backend='{backend}')\n"
        assert not run(script).changed

    def test_compile_of_other_things_stays(self) -> None:
        script = "import re\n\nmodel_name = re.compile('a')\nkeras_model.compile('adam')\n"
        done = run(script)
        assert not done.changed
        assert not done.findings


class TestApex:
    def test_several_models_and_losses(self) -> None:
        script = """
            from apex import amp

            [g, d], [og, od] = amp.initialize([g, d], [og, od], opt_level="O2", num_losses=2)
            with amp.scale_loss(a + b, [og, od], loss_id=0) as scaled:
                scaled.backward()
            with amp.scale_loss(c, od, loss_id=1) as scaled:
                scaled.backward()
        """
        after = text(script)
        assert "(a + b).backward()\nc.backward()\n" in after
        assert 'torch.set_autocast_enabled("xla", True)' in after
        assert "apex" not in after

    def test_float32_and_a_switch(self) -> None:
        head = "from apex import amp\n\n"
        assert "autocast" not in text(f"{head}m, o = amp.initialize(m, o, opt_level='O0')\n")
        on = text(f"{head}m, o = amp.initialize(m, o, enabled=a or b, opt_level=args.level)\n")
        assert "torch.set_autocast_enabled('xla', (a or b) and (args.level != 'O0'))" in on.replace(
            '"', "'"
        )

    @pytest.mark.parametrize(
        "line",
        [
            "m, o = amp.initialize(m, o, opt_level='O3')",
            "m, o = amp.initialize(m, o, cast_model_type=torch.float16)",
            "m, other = amp.initialize(m, o)",
            "m, o = amp.initialize(*both)",
        ],
    )
    def test_what_is_not_plain_is_reported(self, line: str) -> None:
        script = f"import torch\nfrom apex import amp\n\n{line}\n"
        assert not run(script).changed
        assert reports(script, "apex-amp")

    def test_a_scaled_loss_used_afterwards(self) -> None:
        script = """
            from apex import amp

            with amp.scale_loss(loss, optimizer) as scaled:
                scaled.backward()
            print(scaled)
        """
        assert not run(script).changed
        assert "outside of its block" in reports(script, "apex-amp")[0]

    @pytest.mark.parametrize(
        ("before", "after"),
        [
            ("FusedAdam(p, 0.1, adam_w_mode=False)", "torch.optim.Adam(p, 0.1)"),
            ("FusedAdam(p, weight_decay=0.1)", "torch.optim.AdamW(p, weight_decay=0.1)"),
            ("FusedSGD(p, lr=0.1, momentum=0.9)", "torch.optim.SGD(p, lr=0.1, momentum=0.9)"),
            ("FusedAdagrad(p, lr=0.1, eps=1e-9)", "torch.optim.Adagrad(p, lr=0.1, eps=1e-9)"),
        ],
    )
    def test_optimizers(self, before: str, after: str) -> None:
        script = f"from apex import optimizers\n\no = optimizers.{before}\n"
        assert f"o = {after}\n" in text(script)

    def test_branches_that_say_the_same_become_one(self) -> None:
        script = """
            from apex import amp

            if args.fp16:
                with amp.scale_loss(loss, optimizer) as scaled:
                    scaled.backward()
            else:
                loss.backward()
        """
        assert text(script) == "loss.backward()\n"

    def test_an_import_in_a_branch_goes_with_its_use(self) -> None:
        script = """
            def build(model, sync):
                if sync:
                    import apex
                    model = apex.parallel.convert_syncbn_model(model)
                return model
        """
        after = text(script)
        assert "apex" not in after
        assert "model = shims.sync_batch_norm(model)" in after


class TestOldTorchXla:
    def test_spawn_of_one(self) -> None:
        script = """
            import torch_xla.distributed.xla_multiprocessing as xmp

            if __name__ == "__main__":
                xmp.spawn(worker, args=(1,), nprocs=1)
        """
        assert "torch_xla.launch(worker, args=(1,), debug_single_process=True)" in text(script)

    def test_sync_keeps_its_arguments(self) -> None:
        script = "import torch_xla.core.xla_model as xm\n\nxm.mark_step(wait=True)\n"
        assert "torch_xla.sync(wait=True)" in text(script)

    def test_a_device_by_ordinal_is_reported(self) -> None:
        script = "import torch_xla.core.xla_model as xm\n\nd = xm.xla_device(1)\n"
        assert not run(script).changed
        assert reports(script, "old-torch-xla")


AVAILABLE = "torch.cuda.is_available()"


@pytest.mark.parametrize(
    ("line", "after"),
    [
        (f"with torch.autocast('cuda' if {AVAILABLE} else 'cpu'): f()", "torch.autocast('xla'"),
        (
            f"kind = torch.bfloat16 if {AVAILABLE} else torch.half\n"
            "with torch.autocast('cuda', dtype=kind): f()",
            "kind = torch.bfloat16\n",
        ),
        (f"self.s = torch.amp.GradScaler('cuda', enabled={AVAILABLE})", "enabled=False"),
        (f"o = torch.optim.Adam(p, fused={AVAILABLE})", "torch.optim.Adam(p)"),
        (f"s = torch.amp.GradScaler('cuda' if {AVAILABLE} else 'cpu')\ns.scale(x)", "x\n"),
        ("model = torch.compile(model.cuda())", ".to("),
    ],
)
def test_beside_rules_that_edit_the_same_lines(line: str, after: str) -> None:
    assert after in text(f"import torch\n\n{line}\n").replace('"', "'")


def test_a_framework_is_named_once() -> None:
    script = "import deepspeed\nfrom deepspeed import zero\n\ndeepspeed.initialize(zero)\n"
    assert len(reports(script, "frameworks")) == 1


def test_a_clipping_of_the_users_own_stays() -> None:
    script = "from clipping import clip_grad_norm_\n\nclip_grad_norm_(p, 1.0, foreach=True)\n"
    assert not run(script).changed


def test_checkpoints_of_blocks_by_keyword_are_reported() -> None:
    script = "from torch.utils.checkpoint import checkpoint\n\ny = checkpoint(block, x, mask=m)\n"
    assert "mask" in reports(script, "activation-checkpointing")[0]
