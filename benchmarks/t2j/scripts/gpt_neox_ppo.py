"""PPO of a Pythia: reward model as a sequence classifier, penalty for missing end of text, score normalised
by running statistics, gradient accumulation inside of the update."""
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from transformers import GenerationConfig, GPTNeoXConfig, GPTNeoXForCausalLM, GPTNeoXForSequenceClassification, GPTNeoXModel

INVALID_LOGPROB = 1.0


@dataclass
class Args:
    seed: int = 13
    num_updates: int = 5
    rollout_batch_size: int = 16
    micro_batch_size: int = 4
    gradient_accumulation_steps: int = 2
    num_ppo_epochs: int = 2
    response_length: int = 7
    penalty_reward: float = -1.0
    kl_coef: float = 0.05
    whiten_rewards: bool = False
    learning_rate: float = 1e-3
    temperature: float = 0.8


class PolicyAndValueWrapper(nn.Module):
    def __init__(self, policy, value_model):
        super().__init__()
        self.policy = policy
        self.value_model = value_model
        self.score = nn.Linear(value_model.config.hidden_size, 1, bias=False)

    def forward(self, input_ids):
        hidden = self.value_model(input_ids=input_ids).last_hidden_state
        return self.policy(input_ids=input_ids).logits, self.score(hidden).squeeze(-1)


class RunningMeanStd:
    def __init__(self):
        self.mean, self.var, self.count = 0.0, 1.0, 1e-4

    def update(self, xs):
        n, mean, var = xs.numel(), xs.mean().item(), xs.var(unbiased=False).item()
        delta, total = mean - self.mean, n + self.count
        self.var = (self.var * self.count + var * n + delta ** 2 * self.count * n / total) / total
        self.mean += delta * n / total
        self.count = total


def truncate_response(stop_token_id, pad_token_id, responses):
    """All tokens after the first stop token become padding."""
    seen = (responses == stop_token_id).long().cumsum(1) - (responses == stop_token_id).long()
    return responses.masked_fill(seen > 0, pad_token_id)


def masked_mean(values, mask):
    return (values * mask).sum() / mask.sum()


def masked_whiten(values, mask):
    mean = masked_mean(values, mask)
    var = masked_mean((values - mean) ** 2, mask)
    return (values - mean) * torch.rsqrt(var + 1e-8)


def selective_log_softmax(logits, index):
    return torch.gather(logits.log_softmax(-1), -1, index.unsqueeze(-1)).squeeze(-1)


@torch.no_grad()
def rollout(model, ref_policy, reward_model, queries, args, generation_config, stats):
    context_length = queries.shape[1]
    query_responses = model.policy.generate(input_ids=queries, attention_mask=torch.ones_like(queries),
                                            generation_config=generation_config)
    responses = query_responses[:, context_length:]
    logits, full_value = model(query_responses)
    logprobs = selective_log_softmax(logits[:, context_length - 1:-1] / args.temperature, responses)
    ref_logits = ref_policy(input_ids=query_responses).logits[:, context_length - 1:-1] / args.temperature
    ref_logprobs = selective_log_softmax(ref_logits, responses)
    postprocessed = truncate_response(1, 0, responses)
    lengths = (postprocessed != 0).sum(1) - 1
    padding_mask = torch.arange(responses.shape[1]) > lengths.unsqueeze(1)
    scores = reward_model(input_ids=torch.cat([queries, postprocessed], 1),
                          attention_mask=torch.cat([torch.ones_like(queries), (~padding_mask).long()], 1)).logits.squeeze(-1)
    stats.update(scores)
    scores = (scores - stats.mean) / math.sqrt(stats.var + 1e-8)
    contains_eos = (postprocessed == 1).any(1)
    scores = torch.where(contains_eos, scores, scores + args.penalty_reward)
    logprobs = logprobs.masked_fill(padding_mask, INVALID_LOGPROB)
    ref_logprobs = ref_logprobs.masked_fill(padding_mask, INVALID_LOGPROB)
    values = full_value[:, context_length - 1:-1].masked_fill(padding_mask, 0)
    rewards = -args.kl_coef * (logprobs - ref_logprobs)
    rewards[torch.arange(len(rewards)), lengths] += scores
    if args.whiten_rewards:
        rewards = masked_whiten(rewards, ~padding_mask)
    lastgaelam, advantages_reversed = 0, []
    for t in reversed(range(responses.shape[1])):
        nextvalues = values[:, t + 1] if t < responses.shape[1] - 1 else 0.0
        delta = rewards[:, t] + nextvalues - values[:, t]
        lastgaelam = delta + 0.95 * lastgaelam
        advantages_reversed.append(lastgaelam)
    advantages = torch.stack(advantages_reversed[::-1], 1)
    returns = advantages + values
    advantages = masked_whiten(advantages, ~padding_mask).masked_fill(padding_mask, 0)
    return query_responses, responses, logprobs, values, advantages, returns, padding_mask, scores


def micro_batch_loss(model, mb_query_responses, mb_responses, mb_logprobs, mb_values, mb_advantages, mb_returns, mb_padding, args):
    n = mb_responses.shape[1]
    logits, vpred = model(mb_query_responses)
    new_logprobs = selective_log_softmax(logits[:, -n - 1:-1] / args.temperature, mb_responses)
    new_logprobs = new_logprobs.masked_fill(mb_padding, INVALID_LOGPROB)
    vpred = vpred[:, -n - 1:-1].masked_fill(mb_padding, 0)
    vpredclipped = torch.clamp(vpred, mb_values - 0.2, mb_values + 0.2)
    vf_loss = 0.5 * masked_mean(torch.max((vpred - mb_returns) ** 2, (vpredclipped - mb_returns) ** 2), ~mb_padding)
    ratio = torch.exp(new_logprobs - mb_logprobs)
    pg_loss = masked_mean(torch.max(-mb_advantages * ratio, -mb_advantages * ratio.clamp(0.8, 1.2)), ~mb_padding)
    return pg_loss + 0.1 * vf_loss


def main(args):
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    config = GPTNeoXConfig(vocab_size=20, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                           rotary_pct=0.25, max_position_embeddings=24, hidden_dropout=0.0, attention_dropout=0.0,
                           bos_token_id=1, eos_token_id=1, pad_token_id=0)
    ref_policy = GPTNeoXForCausalLM(config).requires_grad_(False).eval()
    policy = GPTNeoXForCausalLM(config)
    policy.load_state_dict(ref_policy.state_dict())
    config.num_labels = 1
    reward_model = GPTNeoXForSequenceClassification(config).requires_grad_(False).eval()
    model = PolicyAndValueWrapper(policy, GPTNeoXModel(config))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate, eps=1e-5, weight_decay=0.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: 1 - update / args.num_updates)
    generation_config = GenerationConfig(max_new_tokens=args.response_length, min_new_tokens=args.response_length, do_sample=True,
                                         temperature=args.temperature, top_k=0, top_p=1.0, pad_token_id=0, eos_token_id=None)
    stats = RunningMeanStd()
    for update in range(args.num_updates):
        queries = torch.randint(2, 20, (args.rollout_batch_size, 5))
        *data, scores = rollout(model, ref_policy, reward_model, queries, args, generation_config, stats)
        for _ in range(args.num_ppo_epochs):
            indices = torch.randperm(args.rollout_batch_size)
            for k, start in enumerate(range(0, args.rollout_batch_size, args.micro_batch_size)):
                micro = [x[indices[start:start + args.micro_batch_size]] for x in data]
                loss = micro_batch_loss(model, *micro, args)
                (loss / args.gradient_accumulation_steps).backward()
                if (k + 1) % args.gradient_accumulation_steps == 0:
                    optimizer.step()
                    optimizer.zero_grad()
        scheduler.step()
        print(f"update {update}: score {scores.mean():.3f} loss {loss.item():.4f} lr {scheduler.get_last_lr()[0]:.1e}")


if __name__ == "__main__":
    main(Args())
