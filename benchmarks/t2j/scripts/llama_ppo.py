# PPO for a small Llama, one file, as CleanRL and "The N implementation details of RLHF" have it.
import time
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification


@dataclass
class Args:
    seed: int = 3
    total_updates: int = 6
    batch_size: int = 16
    num_minibatches: int = 2
    noptepochs: int = 2
    query_length: int = 5
    response_length: int = 7
    lr: float = 1e-3
    eps: float = 1e-5
    kl_coef: float = 0.1
    gamma: float = 1.0
    lam: float = 0.95
    cliprange: float = 0.2
    cliprange_value: float = 0.2
    vf_coef: float = 0.5
    temperature: float = 0.9


def layer_init(layer, std=1.0, bias=0.0):
    torch.nn.init.normal_(layer.weight, std=std)
    torch.nn.init.constant_(layer.bias, bias)
    return layer


class ScalarHead(nn.Module):
    def __init__(self, hidden_size):
        super().__init__()
        self.linear = layer_init(nn.Linear(hidden_size, 1), std=1 / np.sqrt(hidden_size + 1))

    def forward(self, hidden):
        return self.linear(hidden).squeeze(-1)


class AutoModelForCausalLMWithScalarHead(nn.Module):
    def __init__(self, pretrained_model):
        super().__init__()
        self.pretrained_model = pretrained_model
        self.scalar_head = ScalarHead(pretrained_model.config.hidden_size)

    def forward(self, input_ids, attention_mask):
        position_ids = (attention_mask.cumsum(1) - attention_mask.long()).clamp(min=0)
        output = self.pretrained_model(input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids,
                                       output_hidden_states=True)
        return output.logits, self.scalar_head(output.hidden_states[-1])


def whiten(values, shift_mean=True):
    mean, var = torch.mean(values), torch.var(values, unbiased=False)
    whitened = (values - mean) * torch.rsqrt(var + 1e-8)
    return whitened if shift_mean else whitened + mean


def generate(lm, queries, attention_mask, config):
    out = lm.generate(input_ids=queries, attention_mask=attention_mask, generation_config=config)
    return out[:, queries.shape[1]:]


def make_queries(rng, args, vocab):
    """Left-padded queries of two to five tokens."""
    lengths = rng.integers(2, args.query_length + 1, size=args.batch_size)
    queries = rng.integers(3, vocab, size=(args.batch_size, args.query_length))
    mask = np.arange(args.query_length)[None] >= (args.query_length - lengths)[:, None]
    return torch.from_numpy(np.where(mask, queries, 0)), torch.from_numpy(mask.astype(np.int64))


if __name__ == "__main__":
    args = Args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    rng = np.random.default_rng(args.seed)
    vocab = 20
    llama = LlamaConfig(vocab_size=vocab, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
                        num_key_value_heads=2, max_position_embeddings=32, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    policy = AutoModelForCausalLMWithScalarHead(LlamaForCausalLM(llama))
    ref_policy = LlamaForCausalLM(llama)
    ref_policy.load_state_dict(policy.pretrained_model.state_dict())
    llama.num_labels = 1
    reward_model = LlamaForSequenceClassification(llama).eval()
    for frozen in (ref_policy, reward_model):
        frozen.requires_grad_(False)
    optimizer = optim.Adam(policy.parameters(), lr=args.lr, eps=args.eps)
    generation_config = GenerationConfig(
        max_new_tokens=args.response_length, min_new_tokens=args.response_length, temperature=args.temperature,
        top_k=0, top_p=1.0, do_sample=True, pad_token_id=0, eos_token_id=None)

    start_time = time.time()
    for update in range(1, args.total_updates + 1):
        frac = 1.0 - (update - 1.0) / args.total_updates
        optimizer.param_groups[0]["lr"] = frac * args.lr
        queries, query_mask = make_queries(rng, args, vocab)
        with torch.no_grad():
            responses = generate(policy.pretrained_model, queries, query_mask, generation_config)
            query_responses = torch.cat([queries, responses], 1)
            attention_mask = torch.cat([query_mask, torch.ones_like(responses)], 1)
            logits, full_values = policy(query_responses, attention_mask)
            values = full_values[:, args.query_length - 1:-1]
            logits = logits[:, args.query_length - 1:-1] / args.temperature
            logprobs = torch.gather(logits.log_softmax(-1), 2, responses.unsqueeze(-1)).squeeze(-1)
            positions = (attention_mask.cumsum(1) - attention_mask).clamp(min=0)
            ref_logits = ref_policy(query_responses, attention_mask=attention_mask, position_ids=positions).logits
            ref_logits = ref_logits[:, args.query_length - 1:-1] / args.temperature
            ref_logprobs = torch.gather(ref_logits.log_softmax(-1), 2, responses.unsqueeze(-1)).squeeze(-1)
            scores = reward_model(query_responses, attention_mask=attention_mask).logits.squeeze(-1) * 10
            kl = logprobs - ref_logprobs
            rewards = -args.kl_coef * kl
            rewards[:, -1] += scores
            rewards = whiten(rewards, shift_mean=False)
            lastgaelam = 0
            advantages_reversed = []
            for t in reversed(range(args.response_length)):
                nextvalues = values[:, t + 1] if t < args.response_length - 1 else 0.0
                delta = rewards[:, t] + args.gamma * nextvalues - values[:, t]
                lastgaelam = delta + args.gamma * args.lam * lastgaelam
                advantages_reversed.append(lastgaelam)
            advantages = torch.stack(advantages_reversed[::-1], axis=1)
            returns = advantages + values
            advantages = whiten(advantages)

        local_batch = args.batch_size // args.num_minibatches
        for epoch in range(args.noptepochs):
            b_inds = rng.permutation(args.batch_size)
            for start in range(0, args.batch_size, local_batch):
                mb_inds = b_inds[start:start + local_batch]
                mb_advantage, mb_values = advantages[mb_inds], values[mb_inds]
                mb_responses, mb_query_responses = responses[mb_inds], query_responses[mb_inds]
                mb_attention_mask = attention_mask[mb_inds]
                mb_logprobs, mb_return = logprobs[mb_inds], returns[mb_inds]

                output, vpred_temp = policy(mb_query_responses, mb_attention_mask)
                new_logits = output[:, args.query_length - 1:-1] / args.temperature
                new_logprobs = torch.gather(new_logits.log_softmax(-1), 2, mb_responses.unsqueeze(-1)).squeeze(-1)
                vpred = vpred_temp[:, args.query_length - 1:-1]
                vpredclipped = torch.clamp(vpred, mb_values - args.cliprange_value, mb_values + args.cliprange_value)
                vf_losses1 = torch.square(vpred - mb_return)
                vf_losses2 = torch.square(vpredclipped - mb_return)
                vf_loss = 0.5 * torch.max(vf_losses1, vf_losses2).mean()
                logprobs_diff = new_logprobs - mb_logprobs
                ratio = torch.exp(logprobs_diff)
                pg_losses = -mb_advantage * ratio
                pg_losses2 = -mb_advantage * torch.clamp(ratio, 1.0 - args.cliprange, 1.0 + args.cliprange)
                pg_loss = torch.max(pg_losses, pg_losses2).mean()
                loss = pg_loss + args.vf_coef * vf_loss
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                with torch.no_grad():
                    approxkl = 0.5 * (logprobs_diff ** 2).mean()
                    pg_clipfrac = (pg_losses2 > pg_losses).float().mean()
        print(f"update {update} score {scores.mean().item():.3f} kl {kl.sum(1).mean().item():.4f} "
              f"loss {loss.item():.4f} approxkl {approxkl.item():.4f} clipfrac {pg_clipfrac.item():.2f} "
              f"lr {optimizer.param_groups[0]['lr']:.2e} {time.time() - start_time:.1f}s")
