"""PPO for T5: answers sampled by generate(), a value head on the decoder, n-gram overlap as the reward."""
import argparse
import random

import torch
import torch.nn as nn
from torch.nn import functional as F
from transformers import T5Config, T5ForConditionalGeneration


class Seq2SeqWithValueHead(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.t5 = T5ForConditionalGeneration(config)
        self.v_head = nn.Linear(config.d_model, 1)

    def forward(self, source, source_mask, decoder_ids):
        out = self.t5(input_ids=source, attention_mask=source_mask, decoder_input_ids=decoder_ids, output_hidden_states=True)
        return out.logits, self.v_head(out.decoder_hidden_states[-1]).squeeze(-1)


def overlap(answer, reference):
    """Share of the reference's bigrams that the answer has."""
    wanted = set(zip(reference, reference[1:]))
    return len(wanted & set(zip(answer, answer[1:]))) / len(wanted) + 0.2 * len(set(answer) & set(reference)) / len(set(reference))


def make_task(batch, length, vocab, rng):
    """The answer should be the source backwards."""
    rows = [[rng.randrange(2, vocab) for _ in range(rng.randint(3, length))] for _ in range(batch)]
    source = torch.tensor([r + [1] + [0] * (length - len(r)) for r in rows])
    return source, [r[::-1] for r in rows]


def gather_logp(logits, tokens):
    return torch.log_softmax(logits, -1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def masked_mean(x, mask):
    return (x * mask).sum() / mask.sum()


@torch.no_grad()
def generate_experience(model, reference, source, targets, opts):
    source_mask = (source != 0).long()
    sequences = model.t5.generate(input_ids=source, attention_mask=source_mask, do_sample=True, top_k=0, max_new_tokens=opts.max_new)
    decoder_in, tokens = sequences[:, :-1], sequences[:, 1:]
    ended = (tokens == 1).long()
    mask = ((ended.cumsum(1) - ended) == 0).float()
    logits, values = model(source, source_mask, decoder_in)
    old_logp = gather_logp(logits, tokens) * mask
    ref_logp = gather_logp(reference(input_ids=source, attention_mask=source_mask, decoder_input_ids=decoder_in).logits, tokens) * mask
    values = values * mask
    score = torch.tensor([overlap(a, t) for a, t in zip(tokens.tolist(), targets)])
    reward = -opts.kl * (old_logp - ref_logp)
    reward[torch.arange(len(reward)), mask.sum(1).long() - 1] += score
    advantage = torch.zeros_like(reward)
    running = torch.zeros(len(reward))
    for t in reversed(range(reward.shape[1])):
        nxt = values[:, t + 1] if t + 1 < reward.shape[1] else torch.zeros(len(reward))
        running = reward[:, t] + nxt - values[:, t] + opts.lam * running
        advantage[:, t] = running
    returns = advantage + values
    centre = masked_mean(advantage, mask)
    spread = masked_mean((advantage - centre).square(), mask).sqrt()
    return dict(source=source, source_mask=source_mask, decoder_in=decoder_in, tokens=tokens, mask=mask, old_logp=old_logp,
                values=values, advantage=(advantage - centre) / (spread + 1e-8), returns=returns, score=score)


def ppo_step(model, optimizer, exp, opts):
    logits, values = model(exp["source"], exp["source_mask"], exp["decoder_in"])
    ratio = torch.exp(gather_logp(logits, exp["tokens"]) * exp["mask"] - exp["old_logp"])
    clipped = ratio.clamp(1 - opts.clip, 1 + opts.clip)
    policy_loss = masked_mean(torch.max(-exp["advantage"] * ratio, -exp["advantage"] * clipped), exp["mask"])
    value_clip = exp["values"] + (values - exp["values"]).clamp(-opts.clip, opts.clip)
    value_loss = masked_mean(torch.max((values - exp["returns"]) ** 2, (value_clip - exp["returns"]) ** 2), exp["mask"])
    loss = policy_loss + 0.5 * opts.vf * value_loss
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return policy_loss.item(), value_loss.item()


def main():
    parser = argparse.ArgumentParser()
    for name, kind, default in [("seed", int, 2), ("rounds", int, 5), ("batch", int, 12), ("length", int, 5), ("max_new", int, 6),
                                ("epochs", int, 3), ("lr", float, 1e-3), ("clip", float, 0.2), ("kl", float, 0.05),
                                ("lam", float, 0.95), ("vf", float, 0.5)]:
        parser.add_argument(f"--{name}", type=kind, default=default)
    opts = parser.parse_args()
    torch.manual_seed(opts.seed)
    torch.set_num_threads(1)
    rng = random.Random(opts.seed)
    config = T5Config(vocab_size=14, d_model=32, d_kv=8, d_ff=48, num_layers=1, num_heads=4, dropout_rate=0.0, pad_token_id=0,
                      eos_token_id=1, decoder_start_token_id=0)
    model = Seq2SeqWithValueHead(config)
    reference = T5ForConditionalGeneration(config).eval().requires_grad_(False)
    reference.load_state_dict(model.t5.state_dict())
    optimizer = torch.optim.AdamW(model.parameters(), lr=opts.lr, weight_decay=0.0)
    for round_ in range(opts.rounds):
        source, targets = make_task(opts.batch, opts.length, config.vocab_size, rng)
        exp = generate_experience(model, reference, source, targets, opts)
        for _ in range(opts.epochs):
            policy_loss, value_loss = ppo_step(model, optimizer, exp, opts)
        print(f"round {round_}: score {exp['score'].mean():.3f} policy {policy_loss:.4f} value {value_loss:.4f}")


if __name__ == "__main__":
    main()
