"""Mamba on selective copying. A state-space model has no mask for padding: batches are of one length."""
import argparse
import random
from collections import defaultdict

import torch
import torch.nn.functional as F
from transformers import MambaConfig, MambaForCausalLM


def selective_copying(n, n_symbols, seed):
    """Noise with a few symbols in it, then a signal; the symbols are to be repeated in order."""
    rng = random.Random(seed)
    samples = []
    for _ in range(n):
        length = rng.choice([10, 12, 14])
        symbols = [rng.randrange(3, 3 + n_symbols) for _ in range(3)]
        places = sorted(rng.sample(range(length), 3))
        context = [1] * length
        for place, symbol in zip(places, symbols):
            context[place] = symbol
        samples.append(context + [2] + symbols)
    return samples


def bucketed_batches(samples, batch_size, rng):
    buckets = defaultdict(list)
    for sample in samples:
        buckets[len(sample)].append(sample)
    batches = []
    for rows in buckets.values():
        rng.shuffle(rows)
        batches += [torch.tensor(rows[i:i + batch_size]) for i in range(0, len(rows), batch_size)]
    rng.shuffle(batches)
    return batches


def get_optimizer(model, lr, weight_decay):
    """Mamba's own parameters of the state space must not decay."""
    decay, keep = [], []
    for name, p in model.named_parameters():
        if p.ndim < 2 or name.endswith(("A_log", ".D")) or "dt_proj" in name:
            keep.append(p)
        else:
            decay.append(p)
    return torch.optim.AdamW([{"params": decay, "weight_decay": weight_decay}, {"params": keep, "weight_decay": 0.0}],
                             lr=lr, betas=(0.9, 0.95))


def lm_loss(model, ids):
    logits = model(input_ids=ids).logits
    # only what follows the signal is learned: the last three
    return F.cross_entropy(logits[:, -4:-1].reshape(-1, logits.size(-1)), ids[:, -3:].reshape(-1))


def accuracy(model, batches):
    model.eval()
    right = total = 0
    with torch.no_grad():
        for ids in batches:
            guess = model(input_ids=ids).logits[:, -4:-1].argmax(-1)
            right += (guess == ids[:, -3:]).sum().item()
            total += guess.numel()
    model.train()
    return right / total


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--seed", type=int, default=4)
    opt = parser.parse_args()

    torch.manual_seed(opt.seed)
    torch.set_num_threads(1)
    rng = random.Random(opt.seed)
    train, test = selective_copying(120, 5, opt.seed), selective_copying(24, 5, opt.seed + 1)
    model = MambaForCausalLM(MambaConfig(vocab_size=8, hidden_size=24, state_size=4, num_hidden_layers=2, expand=2, conv_kernel=4,
                                         time_step_rank=4, pad_token_id=0, bos_token_id=0, eos_token_id=0))
    optimizer = get_optimizer(model, opt.lr, opt.weight_decay)
    warm = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, (n + 1) / opt.warmup))
    step = 0
    for epoch in range(opt.epochs):
        for ids in bucketed_batches(train, opt.batch_size, rng):
            loss = lm_loss(model, ids)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            warm.step()
            if step % 5 == 0:
                print(f"step {step} length {ids.shape[1]} loss {loss.item():.4f}")
            step += 1
        print(f"epoch {epoch} accuracy {accuracy(model, bucketed_batches(test, 8, random.Random(0))):.3f}")
