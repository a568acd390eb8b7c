"""A function whose tensors autocast brings to one type on CUDA only: attention, `grid_sample`."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.reading.halves.mixed import NARROWED, WIDENED, mixed_of
from migrate.reading.steps.in_step import When
from migrate.syntax.origins import at_line
from migrate.syntax.tree import code, last_part


class MixedTypes(Hazard):
    """Attention, or a function like it, is given float32 and bfloat16 in an autocast region.

    **Why.** The autocast of CUDA brings the tensors of `scaled_dot_product_attention`, `addmv` and
    `linalg.vecdot` to float16, and those of `grid_sample`, `bilinear`, `cross`, `inner`, `vdot`, `tensordot`
    and `scatter_add` to the widest of their types. The autocast of torch_xla knows none of them: what a
    linear layer or a convolution gave is bfloat16, what a norm with weights gave, or a product with a
    parameter, is float32, and the call raises ("Expected query, key, and value to have the same dtype").
    Where the region stands in another file of the project, the call is reported as if it ran there. Where
    an option decides whether the types differ (`self.q_norm = norm(dim) if qk_norm else Identity()`), it
    is a warning.

    **What to do.** What CUDA does: for attention the type of the tensor in bfloat16,
    `q, k = q.to(v.dtype), k.to(v.dtype)`; for the others `.float()` of the tensor in bfloat16.

    Source: torch 2.9 and torch_xla 2.9 (measured: each of the functions raises, and does not after the cast).
    """

    code = "XLA888"
    name = "mixed-types"
    severity = Severity.ERROR
    nodes = (cst.Call,)
    words = "|".join(rf"\b{name.rpartition('.')[2]}\b" for name in (*NARROWED, *WIDENED))
    examples = (
        example(
            """
            import torch
            import torch.nn.functional as F


            class Attention(torch.nn.Module):
                def __init__(self, dim):
                    super().__init__()
                    self.qkv = torch.nn.Linear(dim, 3 * dim)
                    self.q_norm = torch.nn.LayerNorm(dim)
                    self.k_norm = torch.nn.LayerNorm(dim)

                def forward(self, x):
                    q, k, v = self.qkv(x).chunk(3, dim=-1)
                    q, k = self.q_norm(q), self.k_norm(k)
                    return F.scaled_dot_product_attention(q, k, v)  # XLA888


            def train(loader, optimizer):
                model = Attention(64).cuda()
                for x in loader:
                    with torch.autocast("cuda", dtype=torch.bfloat16):
                        loss = model(x.cuda()).mean()
                    loss.backward()
                    optimizer.step()
            """
        ),
        example(
            """
            import torch
            import torch.nn.functional as F


            def warp(x, theta):
                conv = torch.nn.Conv2d(3, 8, 1).cuda()
                with torch.autocast("cuda"):
                    features = conv(x)
                    grid = F.affine_grid(theta.float(), x.shape)
                    warped = F.grid_sample(features, grid)  # XLA888
                    return warped + F.grid_sample(features.float(), grid)
            """
        ),
        example(
            """
            import torch
            import torch.nn.functional as F


            class Attention(torch.nn.Module):
                def __init__(self, dim):
                    super().__init__()
                    self.qkv = torch.nn.Linear(dim, 3 * dim)
                    self.q_norm = torch.nn.LayerNorm(dim)

                def forward(self, x):
                    q, k, v = self.qkv(x).chunk(3, dim=-1)
                    first = F.scaled_dot_product_attention(q, k, v)
                    q = self.q_norm(q).to(v.dtype)
                    return first + F.scaled_dot_product_attention(q, k, v)


            def train(loader, optimizer):
                model = Attention(64).cuda()
                for x in loader:
                    with torch.autocast("cuda", dtype=torch.bfloat16):
                        loss = model(x.cuda()).mean()
                    loss.backward()
                    optimizer.step()


            def plain(norm, linear, x):
                q, k, v = norm(x), norm(x), linear(x)
                return F.scaled_dot_product_attention(q, k, v)
            """
        ),
    )
    mended = example(
        """
        import torch
        import torch.nn.functional as F


        def attend(x):
            norm, linear = torch.nn.LayerNorm(8), torch.nn.Linear(8, 8)
            with torch.autocast("xla", dtype=torch.bfloat16):
                v = linear(x)
                q, k = norm(x), norm(x)
                q, k = q.to(v.dtype), k.to(v.dtype)
                return F.scaled_dot_product_attention(q, k, v)
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one call whose tensors differ in type."""
        assert isinstance(node, cst.Call)
        mixed_pair = mixed_of(node, facts)
        if mixed_pair is None:
            return
        mixed, runs = mixed_pair
        sure = mixed.sure and (runs or facts.steps.when(node) is When.STEP)
        half, wide = code(mixed.half), [code(operand) for operand in mixed.wide]
        here = mixed.region.path == facts.context.file
        line = at_line(mixed.region.line, None if here else mixed.region.path)
        where = f"the autocast region of {line}"
        if not runs:
            where += ", if it runs this"
        many = len(wide) > 1
        be = ("are" if many else "is") if mixed.sure else "may be"
        if mixed.narrows:
            whole = all(operand.isidentifier() for operand in wide)
            cast = [f"{operand}.to({half}.dtype)" for operand in wide]
            mend = f"`{', '.join(wide)} = {', '.join(cast)}` before it" if whole else cast[0]
            mend = f"{mend}: CUDA's autocast does that"
        else:
            mend = f"`{half}.float()`: CUDA's autocast takes the wider type"
        message = (
            f"{last_part(node.func)} raises on XLA where its tensors differ in type: "
            f"{_listed(wide)} {be} float32, `{half}` is bfloat16 by {where}; {mend}"
        )
        yield self.hit(node, message, Severity.ERROR if sure else Severity.WARNING)


def _listed(names: list[str]) -> str:
    return " and ".join(f"`{name}`" for name in names)
