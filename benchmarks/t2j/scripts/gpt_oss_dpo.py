"""APO-zero, a relative of DPO, for gpt-oss; everything a run needs is in one class."""
import random

import torch
from torch.utils.data import DataLoader
from transformers import GptOssConfig, GptOssForCausalLM, get_polynomial_decay_schedule_with_warmup


def small_config():
    return GptOssConfig(
        vocab_size=28, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=8, num_local_experts=4, num_experts_per_tok=2, sliding_window=6, max_position_embeddings=32,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, pad_token_id=0, eos_token_id=1,
        attn_implementation="eager")


class Experiment:
    beta = 0.3
    lr, power, warmup = 2e-3, 2.0, 3
    epochs, batch_size, accumulate = 2, 6, 2

    def __init__(self, seed=44):
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        self.rng = random.Random(seed)
        self.policy = GptOssForCausalLM(small_config())
        self.reference = GptOssForCausalLM(small_config())
        self.reference.load_state_dict(self.policy.state_dict())
        for p in self.reference.parameters():
            p.requires_grad = False
        self.reference.eval()
        self.loader = DataLoader(self.make_examples(96), batch_size=self.batch_size, shuffle=True,
                                 collate_fn=self.collate, generator=torch.Generator().manual_seed(seed))
        self.optimizer = torch.optim.AdamW(self.policy.parameters(), lr=self.lr, weight_decay=0.1)
        total = self.epochs * len(self.loader) // self.accumulate
        self.scheduler = get_polynomial_decay_schedule_with_warmup(
            self.optimizer, num_warmup_steps=self.warmup, num_training_steps=total, lr_end=1e-4, power=self.power)

    def make_examples(self, n):
        """Answers in few words are preferred to the same ones with filler."""
        examples = []
        for _ in range(n):
            question = [self.rng.randint(4, 27) for _ in range(self.rng.randint(2, 5))]
            brief = question[:2] + [1]
            wordy = [w for q in question[:2] for w in (q, self.rng.randint(4, 8))] + [1]
            examples.append({"prompt": question + [2], "chosen": brief, "rejected": wordy})
        return examples

    @staticmethod
    def collate(examples):
        def stack(key):
            rows = [e["prompt"] + e[key] for e in examples]
            n = max(map(len, rows))
            ids = torch.tensor([r + [0] * (n - len(r)) for r in rows])
            start = torch.tensor([len(e["prompt"]) for e in examples])
            end = torch.tensor([len(r) for r in rows])
            at = torch.arange(n)[None]
            return ids, (at >= start[:, None]) & (at < end[:, None])
        return {"chosen": stack("chosen"), "rejected": stack("rejected")}

    def logp(self, model, ids, answer):
        logits = model(input_ids=ids, attention_mask=(ids != 0).long(), use_cache=False).logits
        all_logps = torch.log_softmax(logits[:, :-1], dim=-1)
        picked = torch.take_along_dim(all_logps, ids[:, 1:, None], dim=2).squeeze(2)
        return torch.einsum("bt,bt->b", picked, answer[:, 1:].to(picked.dtype))

    def loss(self, batch):
        chosen_ratio = self.logp(self.policy, *batch["chosen"])
        rejected_ratio = self.logp(self.policy, *batch["rejected"])
        with torch.no_grad():
            chosen_reference = self.logp(self.reference, *batch["chosen"])
            rejected_reference = self.logp(self.reference, *batch["rejected"])
        chosen_ratio = chosen_ratio - chosen_reference
        rejected_ratio = rejected_ratio - rejected_reference
        up = 1 - torch.sigmoid(self.beta * chosen_ratio)
        down = torch.sigmoid(self.beta * rejected_ratio)
        return (up + down).mean(), (chosen_ratio > rejected_ratio).float().mean()

    def run(self):
        for epoch in range(self.epochs):
            total, wins = 0.0, 0.0
            for i, batch in enumerate(self.loader):
                loss, won = self.loss(batch)
                loss.div(self.accumulate).backward()
                total, wins = total + loss.item(), wins + won.item()
                if i % self.accumulate == self.accumulate - 1:
                    torch.nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
                    self.optimizer.step()
                    self.optimizer.zero_grad()
                    self.scheduler.step()
            print(f"epoch {epoch}: loss {total / len(self.loader):.4f} wins {wins / len(self.loader):.3f}")


if __name__ == "__main__":
    Experiment().run()
