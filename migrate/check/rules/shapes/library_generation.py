"""Generation of text by a method of transformers."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.target import BOTH
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.syntax.tree import code


class LibraryGeneration(Hazard):
    """`generate` of transformers computes each token with a longer sequence.

    **Why.** The cache of keys and values is one longer for each token, and the position is a number of the
    host: each is another graph. A prompt of another length has other graphs again. A cache of fixed size
    (`cache_implementation="static"`) changes nothing: with transformers 5.23, 8 tokens took 23 compilations
    with both caches, a prompt one token longer 12 more, and lengths that came again none.

    **What to do.** Pad the prompts on the left to one length, and give `max_new_tokens` one number, so that
    only the first call compiles. Otherwise generate in another process, on a GPU or on the host.

    Source: torch_xla 2.9 (measured).
    """

    code = "XLA120"
    name = "library-generation"
    severity = Severity.WARNING
    targets = BOTH
    nodes = (cst.Call,)
    words = "generate"
    examples = (
        example(
            """
            import torch


            @torch.no_grad()
            def rollout(model, tokenizer, task):
                inputs = tokenizer([task], return_tensors="pt").to("cuda")
                ids = model.generate(**inputs, do_sample=True, max_new_tokens=64)  # XLA120
                return tokenizer.batch_decode(ids)
            """
        ),
        example(
            """
            import torch
            from transformers import AutoModelForCausalLM

            policy = AutoModelForCausalLM.from_pretrained("gpt2").to("cuda")
            ids = policy.generate(torch.ones(1, 4, dtype=torch.long).cuda(), max_length=16)  # XLA120
            """
        ),
        example(
            """
            import torch
            from vllm import LLM


            class Sampler(torch.nn.Module):
                def generate(self, x, top_k):
                    return self.head(x).topk(top_k)


            def main(model, prompts, options):
                sampler = Sampler().cuda()
                LLM("gpt2").generate(prompts, options)
                model.generate_report(max_length=3)
                return sampler.generate(torch.ones(1, 4).cuda(), top_k=3)
            """
        ),
        example(
            """
            from transformers import AutoModelForCausalLM

            model = AutoModelForCausalLM.from_pretrained("gpt2")
            print(model.generate(max_new_tokens=4))
            """
        ),
    )
    mended = example(
        """
        import torch


        @torch.no_grad()
        def rollout(model, tokenizer, task):
            inputs = tokenizer([task], return_tensors="pt", padding="max_length", max_length=128).to("cpu")
            ids = model.to("cpu").generate(**inputs, do_sample=True, max_new_tokens=64)
            return tokenizer.batch_decode(ids)
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one call of `generate` that only a model of transformers takes."""
        assert isinstance(node, cst.Call)
        if not facts.context.calls.accelerated or not facts.values.generates(node):
            return
        message = (
            f"`{code(node.func)}` compiles for each token, as its cache gets longer, and again for each "
            "length of the prompt: pad prompts to one length and give max_new_tokens one number, so that "
            "only the first call does"
        )
        yield self.hit(node, message)
