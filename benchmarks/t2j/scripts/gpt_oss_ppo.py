#!/usr/bin/env python3
"""PPO for gpt-oss: tool calls are rewarded if they are well formed. Values from a small transformer of our own."""
import argparse
import time

import torch
import torch.nn as nn
from transformers import GptOssConfig, GptOssForCausalLM

PAD, END, CALL, OPEN, CLOSE = range(5)
VOCAB = 16


class ValueTransformer(nn.Module):
    """Causal encoder that gives a value at each position."""

    def __init__(self, vocab, width=24, max_len=24):
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        self.positions = nn.Embedding(max_len, width)
        self.block = nn.TransformerEncoderLayer(width, 2, 48, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
        self.head = nn.Linear(width, 1)

    def forward(self, ids):
        n = ids.shape[1]
        x = self.tokens(ids) + self.positions(torch.arange(n))
        mask = torch.triu(torch.ones(n, n, dtype=torch.bool), 1)
        return self.head(self.block(x, src_mask=mask)).squeeze(-1)


def well_formed(answer):
    """Half a point for CALL, a quarter each for OPEN right after it and CLOSE later."""
    points = []
    for row in answer.tolist():
        p = 0.0
        if CALL in row:
            at = row.index(CALL)
            p = 0.5 + 0.25 * (row[at + 1:at + 2] == [OPEN]) + 0.25 * (CLOSE in row[at + 1:])
        points.append(p)
    return torch.tensor(points)


def logprobs_and_entropy(policy, ids, start):
    logits = policy(input_ids=ids, use_cache=False).logits[:, start - 1:-1]
    log_p = torch.log_softmax(logits, -1)
    return log_p.gather(-1, ids[:, start:].unsqueeze(-1)).squeeze(-1), -(log_p.exp() * log_p).sum(-1)


def advantages_of(rewards, values, gamma, lam):
    out, carry = [], 0.0
    for t in range(rewards.size(1) - 1, -1, -1):
        after = values[:, t + 1] if t + 1 < rewards.size(1) else torch.zeros_like(values[:, 0])
        carry = rewards[:, t] + gamma * after - values[:, t] + gamma * lam * carry
        out.insert(0, carry)
    return torch.stack(out, 1)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--iterations", type=int, default=5)
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--prompt", type=int, default=3)
    p.add_argument("--length", type=int, default=7)
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--clip", type=float, default=0.2)
    p.add_argument("--dual-clip", type=float, default=3.0)
    p.add_argument("--kl", type=float, default=0.03)
    p.add_argument("--entropy", type=float, default=0.01)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--seed", type=int, default=0)
    a = p.parse_args()
    torch.manual_seed(a.seed)
    torch.set_num_threads(1)
    config = GptOssConfig(vocab_size=VOCAB, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
                          num_key_value_heads=2, head_dim=8, num_local_experts=4, num_experts_per_tok=2, sliding_window=8,
                          max_position_embeddings=32, rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
                          pad_token_id=PAD, eos_token_id=END, attn_implementation="eager")
    policy, frozen, critic = GptOssForCausalLM(config), GptOssForCausalLM(config), ValueTransformer(VOCAB)
    frozen.load_state_dict(policy.state_dict())
    frozen.eval().requires_grad_(False)
    opt = torch.optim.AdamW([*policy.parameters(), *critic.parameters()], lr=a.lr, weight_decay=0.0)
    begin = time.perf_counter()
    for it in range(a.iterations):
        prompts = torch.randint(5, VOCAB, (a.batch, a.prompt))
        ids = policy.generate(prompts, attention_mask=torch.ones_like(prompts), do_sample=True, temperature=1.0, top_k=0,
                              max_new_tokens=a.length, min_new_tokens=a.length)
        score = well_formed(ids[:, a.prompt:])
        with torch.no_grad():
            old, _ = logprobs_and_entropy(policy, ids, a.prompt)
            base, _ = logprobs_and_entropy(frozen, ids, a.prompt)
            old_values = critic(ids)[:, a.prompt - 1:-1]
        rewards = -a.kl * (old - base)
        rewards[:, -1] += score
        adv = advantages_of(rewards, old_values, gamma=1.0, lam=0.95)
        target = adv + old_values
        adv = (adv - adv.mean()) / adv.std().clamp(min=1e-6)
        for _ in range(a.epochs):
            for mb in torch.randperm(a.batch).view(2, -1):
                mb_ids, mb_old, mb_adv, mb_target = ids[mb], old[mb], adv[mb], target[mb]
                new, entropy = logprobs_and_entropy(policy, mb_ids, a.prompt)
                ratio = torch.exp(new - mb_old)
                surrogate = torch.min(ratio * mb_adv, ratio.clamp(1 - a.clip, 1 + a.clip) * mb_adv)
                surrogate = torch.where(mb_adv < 0, torch.max(surrogate, a.dual_clip * mb_adv), surrogate)
                value_error = (critic(mb_ids)[:, a.prompt - 1:-1] - mb_target).pow(2)
                loss = -surrogate.mean() + 0.5 * value_error.mean() - a.entropy * entropy.mean()
                loss.backward()
                nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
                nn.utils.clip_grad_norm_(critic.parameters(), 1.0)
                opt.step()
                opt.zero_grad()
        print(f"[{time.perf_counter() - begin:5.1f}s] iteration {it}: score {score.mean():.3f} loss {loss.item():.4f} "
              f"kl {(old - base).sum(1).mean():.4f}")


if __name__ == "__main__":
    main()
