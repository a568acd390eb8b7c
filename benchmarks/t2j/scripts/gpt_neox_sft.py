"""Pythia-like GPT-NeoX on TL;DR-like posts, the loss over the summary only, Hugging Face's names."""
import argparse
import logging
import random
import sys

import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, get_cosine_schedule_with_warmup

log = logging.getLogger(__name__)
SUBJECTS = "cat dog boss roommate neighbor sister".split()
EVENTS = "ate sold broke lost painted".split()
OBJECTS = "lunch bike phone car lamp".split()
FILLER = "so anyway honestly yesterday again basically".split()
WORDS = ["<|padding|>", "<|endoftext|>", "POST:", "TL;DR:", "my", "the", *SUBJECTS, *EVENTS, *OBJECTS, *FILLER]
WORD_ID = {w: i for i, w in enumerate(WORDS)}


def make_post(rng):
    subject, event, thing = rng.choice(SUBJECTS), rng.choice(EVENTS), rng.choice(OBJECTS)
    words = ["my", subject, event, "the", thing]
    for _ in range(rng.randint(1, 6)):
        words.insert(rng.randrange(len(words) + 1), rng.choice(FILLER))
    return " ".join(words), f"{subject} {event} {thing}"


class TLDRDataset(Dataset):
    def __init__(self, n, rng, max_length):
        self.max_length = max_length
        self.posts = [make_post(rng) for _ in range(n)]

    def __len__(self):
        return len(self.posts)

    def __getitem__(self, idx):
        post, summary = self.posts[idx]
        prompt = [WORD_ID[w] for w in f"POST: {post} TL;DR:".split()]
        target = [WORD_ID[w] for w in summary.split()] + [WORD_ID["<|endoftext|>"]]
        ids = prompt + target
        pad = self.max_length - len(ids)
        return {
            "input_ids": torch.tensor(ids + [0] * pad),
            "attention_mask": torch.tensor([1] * len(ids) + [0] * pad),
            "labels": torch.tensor([-100] * len(prompt) + target + [-100] * pad),
        }


def create_model(args):
    config = GPTNeoXConfig(vocab_size=len(WORDS), hidden_size=args.hidden_size, intermediate_size=4 * args.hidden_size,
                           num_hidden_layers=2, num_attention_heads=4, rotary_pct=0.25, max_position_embeddings=32,
                           use_parallel_residual=True, hidden_dropout=0.0, attention_dropout=0.0, bos_token_id=1, eos_token_id=1,
                           pad_token_id=0)
    return GPTNeoXForCausalLM(config)


def train_step(model, batch, optimizer, scheduler, args):
    """One update over a list of micro-batches, weighted by their numbers of tokens."""
    n_tokens = sum((b["labels"][:, 1:] != -100).sum() for b in batch)
    total = 0.0
    for micro in batch:
        out = model(input_ids=micro["input_ids"], attention_mask=micro["attention_mask"])
        shifted, labels = out.logits[:, :-1], micro["labels"][:, 1:]
        loss = torch.nn.functional.cross_entropy(shifted.transpose(1, 2), labels, ignore_index=-100, reduction="sum") / n_tokens
        loss.backward()
        total += loss.item()
    grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_grad_norm)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad(set_to_none=True)
    return total, grad_norm.item()


def group(iterable, n):
    pending = []
    for item in iterable:
        pending.append(item)
        if len(pending) == n:
            yield pending
            pending = []


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, default=4)
    parser.add_argument("--grad_accum", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--weight_decay", type=float, default=0.01)
    parser.add_argument("--max_grad_norm", type=float, default=1.0)
    parser.add_argument("--hidden_size", type=int, default=32)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(message)s")
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    rng = random.Random(args.seed)
    dataset = TLDRDataset(144, rng, max_length=20)
    sampler = RandomSampler(dataset, generator=torch.Generator().manual_seed(args.seed))
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler, drop_last=True)
    model = create_model(args)
    params = dict(model.named_parameters())
    optimizer = torch.optim.AdamW(
        [{"params": [p for n, p in params.items() if not n.endswith("bias")], "weight_decay": args.weight_decay},
         {"params": [p for n, p in params.items() if n.endswith("bias")], "weight_decay": 0.0}],
        lr=args.lr, betas=(0.9, 0.95), eps=1e-8)
    total_steps = args.epochs * (len(loader) // args.grad_accum)
    scheduler = get_cosine_schedule_with_warmup(optimizer, total_steps // 10, total_steps, num_cycles=0.45)
    step = 0
    for epoch in range(args.epochs):
        model.train()
        for micro_batches in group(loader, args.grad_accum):
            loss, norm = train_step(model, micro_batches, optimizer, scheduler, args)
            step += 1
            if step % 4 == 0:
                log.info("%d/%d loss=%.4f norm=%.3f lr=%.2e", step, total_steps, loss, norm, scheduler.get_last_lr()[0])


if __name__ == "__main__":
    main()
