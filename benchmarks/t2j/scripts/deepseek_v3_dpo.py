"""DPO of DeepSeek-V3 in small: pairs from a verifier, log-probabilities in chunks of the vocabulary's softmax."""
import argparse
import contextlib
import random

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

DIGITS = {c: i + 3 for i, c in enumerate("0123456789:,")}
PAD, BOS, EOS = 0, 1, 2


def verifier(numbers, answer):
    """Whether the answer is the numbers in descending order."""
    return answer == sorted(numbers, reverse=True)


def propose(numbers, rng):
    answer = numbers[:]
    rng.shuffle(answer)
    if rng.random() < 0.3:
        answer = sorted(answer, reverse=True)
    return answer


class VerifiedPairs(Dataset):
    def __init__(self, n, seed):
        rng = random.Random(seed)
        self.pairs = []
        while len(self.pairs) < n:
            numbers = [rng.randrange(100) for _ in range(3)]
            right, wrong = sorted(numbers, reverse=True), propose(numbers, rng)
            if verifier(numbers, right) and not verifier(numbers, wrong):
                self.pairs.append(tuple(self.tokens(x) for x in (numbers, right, wrong)))

    @staticmethod
    def tokens(numbers):
        return [DIGITS[c] for c in ",".join(map(str, numbers))]

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, i):
        prompt, right, wrong = self.pairs[i]
        head = [BOS] + prompt + [DIGITS[":"]]
        return {"chosen": head + right + [EOS], "rejected": head + wrong + [EOS], "prompt_length": len(head)}


def collate(rows):
    longest = max(len(r[k]) for r in rows for k in ("chosen", "rejected"))
    ids = torch.tensor([r[k] + [PAD] * (longest - len(r[k])) for k in ("chosen", "rejected") for r in rows])
    return ids, torch.tensor([r["prompt_length"] for r in rows]).repeat(2)


def sequence_logps(model, ids, prompt_length, chunk=8):
    """Sum of the answer's log-probabilities; the softmax is taken over pieces of the sequence to save memory."""
    attention_mask = (ids != PAD).long()
    hidden = model.model(input_ids=ids, attention_mask=attention_mask, use_cache=False).last_hidden_state
    position = torch.arange(ids.shape[1] - 1)
    answer = (position + 1 >= prompt_length[:, None]) & (ids[:, 1:] != PAD)
    total = torch.zeros(ids.shape[0])
    for begin in range(0, ids.shape[1] - 1, chunk):
        piece = slice(begin, min(begin + chunk, ids.shape[1] - 1))
        logps = model.lm_head(hidden[:, piece]).log_softmax(-1)
        targets = ids[:, 1:][:, piece]
        total = total + (logps.gather(-1, targets[..., None])[..., 0] * answer[:, piece]).sum(1)
    return total


def dpo(policy, reference, batch, beta):
    ids, prompt_length = batch
    logps = {}
    for name, model, guard in (("reference", reference, torch.no_grad()), ("policy", policy, contextlib.nullcontext())):
        with guard:
            logps[name] = sequence_logps(model, ids, prompt_length)
    advantage = logps["policy"] - logps["reference"]
    good, bad = advantage.split(len(ids) // 2)
    return F.binary_cross_entropy_with_logits(beta * (good - bad), torch.ones(len(good))), (good > bad).float().mean()


def main():
    cli = argparse.ArgumentParser()
    cli.add_argument("--beta", type=float, default=0.1)
    cli.add_argument("--lr", type=float, default=2e-3)
    cli.add_argument("--steps", type=int, default=24)
    cli.add_argument("--batch-size", type=int, default=6)
    cli.add_argument("--seed", type=int, default=64)
    opts = cli.parse_args()
    torch.manual_seed(opts.seed)
    torch.set_num_threads(1)
    config = DeepseekV3Config(
        vocab_size=15, hidden_size=32, intermediate_size=48, moe_intermediate_size=16, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=2, n_group=2, topk_group=1,
        first_k_dense_replace=1, q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8,
        max_position_embeddings=32, pad_token_id=PAD, bos_token_id=BOS, eos_token_id=EOS)
    policy, reference = DeepseekV3ForCausalLM(config), DeepseekV3ForCausalLM(config)
    reference.load_state_dict(policy.state_dict())
    for p in reference.parameters():
        p.requires_grad_(False)
    loader = DataLoader(VerifiedPairs(96, opts.seed), opts.batch_size, shuffle=True, collate_fn=collate, drop_last=True)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=opts.lr, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [
        torch.optim.lr_scheduler.LinearLR(optimizer, 0.2, 1.0, total_iters=4),
        torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=opts.steps - 4, eta_min=1e-4)], milestones=[4])
    batches = iter(loader)
    for step in range(opts.steps):
        try:
            batch = next(batches)
        except StopIteration:
            batches = iter(loader)
            batch = next(batches)
        loss, accuracy = dpo(policy, reference, batch, opts.beta)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        if (step + 1) % 4 == 0:
            print(f"{step + 1:3d} loss {loss.item():.4f} accuracy {accuracy.item():.2f}")


if __name__ == "__main__":
    main()
