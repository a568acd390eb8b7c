"""Step 1 of RLHF in the style of DeepSpeed-Chat: supervised fine-tuning of an OPT, with dropout."""
import argparse
import math
import os
import random

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, RandomSampler, SequentialSampler
from transformers import OPTConfig, OPTForCausalLM, SchedulerType, get_scheduler


def parse_args():
    parser = argparse.ArgumentParser(description="Finetune a transformers model on a causal language modeling task")
    parser.add_argument("--per_device_train_batch_size", type=int, default=8)
    parser.add_argument("--per_device_eval_batch_size", type=int, default=16)
    parser.add_argument("--max_seq_len", type=int, default=24)
    parser.add_argument("--learning_rate", type=float, default=3e-3)
    parser.add_argument("--weight_decay", type=float, default=0.1)
    parser.add_argument("--num_train_epochs", type=int, default=2)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=2)
    parser.add_argument("--lr_scheduler_type", type=SchedulerType, default="cosine")
    parser.add_argument("--num_warmup_steps", type=int, default=2)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=1234)
    parser.add_argument("--local_rank", type=int, default=-1)
    parser.add_argument("--output_dir", type=str, default=None)
    return parser.parse_args()


class PromptDataset(Dataset):
    """Human: a number in words. Assistant: in digits."""

    ones = "zero one two three four five six seven eight nine".split()
    tens = "twenty thirty forty fifty sixty seventy eighty ninety".split()
    words = ["<pad>", "<s>", "</s>", "Human:", "Assistant:", *ones, *tens, *"0123456789", "and"]

    def __init__(self, n, seed, max_seq_len):
        rng = np.random.RandomState(seed)
        self.rows = [self.make(rng, max_seq_len) for _ in range(n)]

    def make(self, rng, max_seq_len):
        number = rng.randint(0, 100, size=rng.randint(1, 4))
        said, digits = [], []
        for k, x in enumerate(number):
            said += ["and"] * (k > 0)
            said += ([self.tens[x // 10 - 2]] if x >= 20 else []) + ([self.ones[x % 10]] if x < 20 or x % 10 else [])
            digits += list(str(x if x >= 20 else x % 10))
        chosen = ["<s>", "Human:", *said, "Assistant:", *digits, "</s>"]
        ids = [self.words.index(w) for w in chosen][:max_seq_len]
        pad = max_seq_len - len(ids)
        return {"input_ids": torch.tensor(ids + [0] * pad), "attention_mask": torch.tensor([1] * len(ids) + [0] * pad)}

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, idx):
        row = self.rows[idx]
        # the whole dialogue is learned, padding is not
        return {**row, "labels": torch.where(row["attention_mask"] == 1, row["input_ids"], -100)}


def get_optimizer_grouped_parameters(model, weight_decay, no_decay_name_list=("bias", "layer_norm.weight", "layernorm.weight")):
    return [
        {"params": [p for n, p in model.named_parameters() if not any(nd in n.lower() for nd in no_decay_name_list)],
         "weight_decay": weight_decay},
        {"params": [p for n, p in model.named_parameters() if any(nd in n.lower() for nd in no_decay_name_list)],
         "weight_decay": 0.0},
    ]


def set_random_seed(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def to_device(batch, device):
    return {k: v.to(device) for k, v in batch.items()}


def evaluation(model, eval_dataloader, device):
    model.eval()
    losses = 0
    for step, batch in enumerate(eval_dataloader):
        with torch.no_grad():
            losses += model(**to_device(batch, device)).loss.float()
    losses = losses / (step + 1)
    return math.exp(losses), losses.item()


def main():
    args = parse_args()
    torch.set_num_threads(1)
    device = torch.device("cpu")
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        torch.distributed.init_process_group("gloo")
        args.local_rank = torch.distributed.get_rank()
    set_random_seed(args.seed)
    model = OPTForCausalLM(OPTConfig(
        vocab_size=len(PromptDataset.words), hidden_size=32, ffn_dim=64, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=32, word_embed_proj_dim=32, dropout=args.dropout, attention_dropout=args.dropout,
        pad_token_id=0, bos_token_id=1, eos_token_id=2))
    train_dataset = PromptDataset(160, args.seed, args.max_seq_len)
    eval_dataset = PromptDataset(32, args.seed + 1, args.max_seq_len)
    if args.local_rank == -1:
        train_sampler = RandomSampler(train_dataset, generator=torch.Generator().manual_seed(args.seed))
    else:
        train_sampler = DistributedSampler(train_dataset)
        model = torch.nn.parallel.DistributedDataParallel(model)
    train_dataloader = DataLoader(train_dataset, sampler=train_sampler, batch_size=args.per_device_train_batch_size)
    eval_dataloader = DataLoader(eval_dataset, sampler=SequentialSampler(eval_dataset), batch_size=args.per_device_eval_batch_size)
    optimizer = torch.optim.AdamW(get_optimizer_grouped_parameters(model, args.weight_decay), lr=args.learning_rate, betas=(0.9, 0.95))
    num_update_steps_per_epoch = math.ceil(len(train_dataloader) / args.gradient_accumulation_steps)
    lr_scheduler = get_scheduler(name=args.lr_scheduler_type, optimizer=optimizer, num_warmup_steps=args.num_warmup_steps,
                                 num_training_steps=args.num_train_epochs * num_update_steps_per_epoch)
    for epoch in range(args.num_train_epochs):
        model.train()
        mean_loss = 0.0
        for step, batch in enumerate(train_dataloader):
            batch = to_device(batch, device)
            loss = model(**batch, use_cache=False).loss
            mean_loss += loss.item()
            (loss / args.gradient_accumulation_steps).backward()
            if (step + 1) % args.gradient_accumulation_steps == 0:
                optimizer.step()
                lr_scheduler.step()
                optimizer.zero_grad()
        ppl, eval_loss = evaluation(model, eval_dataloader, device)
        print(f"Epoch {epoch + 1}/{args.num_train_epochs} train loss {mean_loss / (step + 1):.4f} ppl {ppl:.3f} loss {eval_loss:.4f}")
    if args.output_dir is not None:
        os.makedirs(args.output_dir, exist_ok=True)
        torch.save(model.state_dict(), os.path.join(args.output_dir, "pytorch_model.bin"))


if __name__ == "__main__":
    main()
