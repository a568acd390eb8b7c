"""PPO for Gemma 2 against a trained reward model: shared trunk, value head, generate() with left padding."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from transformers import Gemma2Config, Gemma2ForCausalLM, Gemma2Model


def get_args():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--batch", type=int, default=12)
    ap.add_argument("--new-tokens", type=int, default=6)
    ap.add_argument("--inner-epochs", type=int, default=3)
    ap.add_argument("--lr", type=float, default=6e-4)
    ap.add_argument("--kl", type=float, default=0.05)
    ap.add_argument("--gamma", type=float, default=0.99)
    ap.add_argument("--lam", type=float, default=0.9)
    ap.add_argument("--eps", type=float, default=0.2)
    ap.add_argument("--reward-steps", type=int, default=12)
    ap.add_argument("--seed", type=int, default=14)
    return ap.parse_args()


class RewardModel(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.encoder = Gemma2Model(config)
        self.score = nn.Linear(config.hidden_size, 1)

    def forward(self, ids, mask):
        hidden = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        return self.score(hidden[:, -1]).squeeze(-1)


class Policy(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.lm = Gemma2ForCausalLM(config)
        self.value = nn.Sequential(nn.Linear(config.hidden_size, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, ids, mask):
        out = self.lm(input_ids=ids, attention_mask=mask, output_hidden_states=True)
        return out.logits, self.value(out.hidden_states[-1].detach()).squeeze(-1)


def fit_reward_model(reward_model, args, vocab):
    """Learns from pairs that the sequence with more high tokens is better. It is frozen afterwards."""
    generator = torch.Generator().manual_seed(args.seed)
    optimizer = torch.optim.SGD(reward_model.parameters(), lr=0.1)
    mask = torch.ones(16, 8, dtype=torch.long)
    for _ in range(args.reward_steps):
        a, b = torch.randint(3, vocab, (2, 16, 8), generator=generator)
        sign = torch.sign((a > vocab // 2).sum(1) - (b > vocab // 2).sum(1)).float()
        grads = torch.autograd.grad(
            F.softplus(-sign * (reward_model(a, mask) - reward_model(b, mask))).mean(), list(reward_model.parameters()))
        for p, g in zip(reward_model.parameters(), grads):
            p.grad = g
        optimizer.step()
        optimizer.zero_grad()
    return reward_model.eval().requires_grad_(False)


def token_logps(logits, ids, n):
    return logits[:, -n - 1:-1].log_softmax(-1).gather(2, ids[:, -n:].unsqueeze(2)).squeeze(2)


@torch.no_grad()
def collect(policy, ref, reward_model, prompts, prompt_mask, args):
    n = args.new_tokens
    ids = policy.lm.generate(prompts, attention_mask=prompt_mask, do_sample=True, top_k=0, max_new_tokens=n, min_new_tokens=n)
    mask = torch.cat([prompt_mask, prompt_mask.new_ones(len(ids), n)], 1)
    logits, values = policy(ids, mask)
    old_logps, old_values = token_logps(logits, ids, n), values[:, -n - 1:-1]
    ref_logps = token_logps(ref(input_ids=ids, attention_mask=mask).logits, ids, n)
    score = reward_model(ids, mask)
    reward = -args.kl * (old_logps - ref_logps)
    reward[:, -1] += score
    advantage, nxt = torch.zeros_like(reward), torch.zeros(len(ids))
    padded = F.pad(old_values, (0, 1))
    for t in range(n - 1, -1, -1):
        delta = reward[:, t] + args.gamma * padded[:, t + 1] - padded[:, t]
        nxt = advantage[:, t] = delta + args.gamma * args.lam * nxt
    return {"ids": ids, "mask": mask, "logps": old_logps, "advantage": advantage, "target": advantage + old_values, "score": score}


def ppo_loss(policy, roll, eps):
    n = roll["logps"].shape[1]
    logits, values = policy(roll["ids"], roll["mask"])
    ratio = (token_logps(logits, roll["ids"], n) - roll["logps"]).exp()
    adv = roll["advantage"]
    adv = (adv - adv.mean()) / (adv.std() + 1e-6)
    surrogate = torch.minimum(ratio * adv, ratio.clamp(1 - eps, 1 + eps) * adv).mean()
    value_loss = F.smooth_l1_loss(values[:, -n - 1:-1], roll["target"])
    return -surrogate + 0.5 * value_loss


def main():
    args = get_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    vocab = 22
    config = Gemma2Config(vocab_size=vocab, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                          num_key_value_heads=2, head_dim=8, query_pre_attn_scalar=8, sliding_window=8,
                          max_position_embeddings=24, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    reward_model = fit_reward_model(RewardModel(config), args, vocab)
    policy = Policy(config)
    ref = Gemma2ForCausalLM(config).eval().requires_grad_(False)
    ref.load_state_dict(policy.lm.state_dict())
    optimizer = torch.optim.AdamW([{"params": policy.lm.parameters()}, {"params": policy.value.parameters(), "lr": 10 * args.lr}],
                                  lr=args.lr, weight_decay=0.0)
    for round_ in range(args.rounds):
        prompts = torch.randint(3, vocab, (args.batch, 5))
        prompt_mask = (torch.arange(5)[None] >= torch.randint(0, 3, (args.batch, 1))).long()
        roll = collect(policy, ref, reward_model, prompts * prompt_mask, prompt_mask, args)
        for _ in range(args.inner_epochs):
            loss = ppo_loss(policy, roll, args.eps)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            optimizer.step()
        print(f"round {round_}: score {roll['score'].mean().item():.4f} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
