"""PPO of Mixtral on a word game, written as plain functions over one namespace of settings."""
import types

import torch
import torch.nn.functional as F
from transformers import MixtralConfig, MixtralForCausalLM

cfg = types.SimpleNamespace(
    seed=29, vocab=18, prompt=4, answer=6, games=16, rounds=5, passes=2, parts=2, lr=1e-3, value_lr=5e-3, gamma=1.0, lam=0.9,
    low=0.8, high=1.2, value_weight=0.5, kl_weight=0.04, balance=0.01, max_norm=1.0)


class Player(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.model = MixtralForCausalLM(config)
        self.worth = torch.nn.Linear(config.hidden_size, 1)

    def forward(self, ids):
        out = self.model(input_ids=ids, output_hidden_states=True, output_router_logits=True)
        return out.logits, self.worth(out.hidden_states[-1]).squeeze(-1), out.aux_loss


def score_game(ids):
    """A token scores if it is the next in order of any token of the prompt; repeats score once."""
    wanted = ids[:, :cfg.prompt] + 1
    hits = ids[:, None, cfg.prompt:] == wanted[:, :, None]
    return hits.any(2).float().sum(1)


def answer_terms(player, ids):
    logits, worth, aux = player(ids)
    logp = F.log_softmax(logits[:, cfg.prompt - 1:-1], -1).gather(2, ids[:, cfg.prompt:].unsqueeze(2)).squeeze(2)
    return logp, worth[:, cfg.prompt - 1:-1], aux


@torch.no_grad()
def play(player, reference, generator):
    ids = torch.randint(2, cfg.vocab - 1, (cfg.games, cfg.prompt), generator=generator)
    for _ in range(cfg.answer):
        logits = player(ids)[0][:, -1]
        # the Gumbel trick: an argmax instead of a draw from a distribution
        noise = -torch.log(-torch.log(torch.rand(logits.shape, generator=generator).clamp(1e-9, 1 - 1e-7)))
        ids = torch.cat([ids, (logits + noise).argmax(-1, keepdim=True)], 1)
    old, worth, _ = answer_terms(player, ids)
    base, _, _ = answer_terms(reference, ids)
    points = score_game(ids)
    rewards = -cfg.kl_weight * (old - base)
    rewards[:, -1] += points
    advantages = torch.zeros_like(rewards)
    acc = 0.0
    for t in range(cfg.answer)[::-1]:
        after = worth[:, t + 1] if t < cfg.answer - 1 else 0.0
        acc = rewards[:, t] + cfg.gamma * after - worth[:, t] + cfg.gamma * cfg.lam * acc
        advantages[:, t] = acc
    return ids, old, advantages, advantages + worth, points


def objective(player, ids, old, advantages, returns):
    new, worth, aux = answer_terms(player, ids)
    ratio = (new - old).exp()
    advantages = F.layer_norm(advantages, advantages.shape)
    surrogate = torch.min(ratio * advantages, ratio.clamp(cfg.low, cfg.high) * advantages).mean()
    return cfg.value_weight * F.huber_loss(worth, returns) - surrogate + cfg.balance * aux


def main():
    torch.manual_seed(cfg.seed)
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(cfg.seed)
    shape = MixtralConfig(vocab_size=cfg.vocab, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                          num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2, max_position_embeddings=16,
                          pad_token_id=0, bos_token_id=1, eos_token_id=None)
    player, reference = Player(shape), Player(shape)
    reference.load_state_dict(player.state_dict())
    reference.requires_grad_(False).eval()
    optimizer = torch.optim.Adam([{"params": player.model.parameters(), "lr": cfg.lr},
                                  {"params": player.worth.parameters(), "lr": cfg.value_lr}], betas=(0.9, 0.98))
    for r in range(cfg.rounds):
        ids, old, advantages, returns, points = play(player, reference, generator)
        for _ in range(cfg.passes):
            for part in torch.randperm(cfg.games, generator=generator).chunk(cfg.parts):
                part_ids, part_old = ids[part], old[part]
                part_advantages, part_returns = advantages[part], returns[part]
                loss = objective(player, part_ids, part_old, part_advantages, part_returns)
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(player.parameters(), cfg.max_norm)
                optimizer.step()
        print(f"round {r}: points {points.mean():.3f} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
