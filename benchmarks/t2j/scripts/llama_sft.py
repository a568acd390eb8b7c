#!/usr/bin/env python
"""
Fine-tuning a Llama on instruction data without the Trainer.

    python llama_sft.py
    torchrun --nproc_per_node 2 llama_sft.py --max_train_steps 20
"""
import argparse
import json
import logging
import math
import os
import random

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler
from transformers import LlamaConfig, LlamaForCausalLM, get_scheduler, set_seed

logger = logging.getLogger(__name__)

PAD, BOS, EOS = 0, 1, 2
IGNORE_INDEX = -100


def parse_args():
    parser = argparse.ArgumentParser(description="Finetune a Llama on a causal language modeling task")
    parser.add_argument("--per_device_train_batch_size", type=int, default=8)
    parser.add_argument("--learning_rate", type=float, default=2e-3)
    parser.add_argument("--weight_decay", type=float, default=0.05)
    parser.add_argument("--num_train_epochs", type=int, default=2)
    parser.add_argument("--max_train_steps", type=int, default=None)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
    parser.add_argument("--lr_scheduler_type", default="cosine")
    parser.add_argument("--num_warmup_steps", type=int, default=3)
    parser.add_argument("--max_length", type=int, default=40)
    parser.add_argument("--output_dir", default=None)
    parser.add_argument("--seed", type=int, default=7)
    return parser.parse_args()


class InstructionDataset(Dataset):
    """Byte-level instructions: write a word in capitals, backwards, or twice."""

    def __init__(self, size, seed, max_length):
        rng = random.Random(seed)
        self.max_length = max_length
        self.records = []
        for _ in range(size):
            word = "".join(rng.choice("abcdefgh") for _ in range(rng.randint(2, 6)))
            task = rng.choice(["upper", "reverse", "twice"])
            response = {"upper": word.upper(), "reverse": word[::-1], "twice": word + word}[task]
            self.records.append({"instruction": f"{task}: {word}\n", "response": response})

    def __len__(self):
        return len(self.records)

    def __getitem__(self, index):
        record = self.records[index]
        prompt = [BOS] + [b + 3 for b in record["instruction"].encode()]
        answer = [b + 3 for b in record["response"].encode()] + [EOS]
        input_ids = (prompt + answer)[: self.max_length]
        labels = ([IGNORE_INDEX] * len(prompt) + answer)[: self.max_length]
        return {"input_ids": input_ids, "labels": labels}


class DataCollatorForSupervisedDataset:
    def __init__(self, pad_token_id):
        self.pad_token_id = pad_token_id

    def __call__(self, instances):
        width = max(len(x["input_ids"]) for x in instances)
        batch = {"input_ids": [], "labels": [], "attention_mask": []}
        for x in instances:
            missing = width - len(x["input_ids"])
            batch["input_ids"].append(x["input_ids"] + [self.pad_token_id] * missing)
            batch["labels"].append(x["labels"] + [IGNORE_INDEX] * missing)
            batch["attention_mask"].append([1] * len(x["input_ids"]) + [0] * missing)
        return {k: torch.tensor(v) for k, v in batch.items()}


def main():
    args = parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(1)
    distributed = int(os.environ.get("WORLD_SIZE", 1)) > 1
    if distributed:
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank = dist.get_rank() if distributed else 0
    world_size = dist.get_world_size() if distributed else 1
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if torch.cuda.is_available() else torch.device("cpu")
    set_seed(args.seed)

    train_dataset = InstructionDataset(160, args.seed, args.max_length)
    eval_dataset = InstructionDataset(32, args.seed + 1, args.max_length)
    collator = DataCollatorForSupervisedDataset(PAD)
    sampler = DistributedSampler(train_dataset, world_size, rank, shuffle=True, seed=args.seed)
    train_dataloader = DataLoader(train_dataset, sampler=sampler, collate_fn=collator,
                                  batch_size=args.per_device_train_batch_size)
    eval_dataloader = DataLoader(eval_dataset, collate_fn=collator, batch_size=args.per_device_train_batch_size)

    config = LlamaConfig(vocab_size=256 + 3, hidden_size=48, intermediate_size=96, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
                         pad_token_id=PAD, bos_token_id=BOS, eos_token_id=EOS)
    model = LlamaForCausalLM(config).to(device)
    if distributed:
        model = DDP(model, device_ids=[device.index] if device.type == "cuda" else None)

    no_decay = ["bias", "layernorm.weight", "norm.weight"]
    optimizer_grouped_parameters = [
        {"params": [p for n, p in model.named_parameters() if not any(nd in n for nd in no_decay)],
         "weight_decay": args.weight_decay},
        {"params": [p for n, p in model.named_parameters() if any(nd in n for nd in no_decay)],
         "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(optimizer_grouped_parameters, lr=args.learning_rate)
    updates_per_epoch = math.ceil(len(train_dataloader) / args.gradient_accumulation_steps)
    if args.max_train_steps is None:
        args.max_train_steps = args.num_train_epochs * updates_per_epoch
    lr_scheduler = get_scheduler(args.lr_scheduler_type, optimizer, num_warmup_steps=args.num_warmup_steps,
                                 num_training_steps=args.max_train_steps)

    completed_steps = 0
    for epoch in range(args.num_train_epochs):
        model.train()
        sampler.set_epoch(epoch)
        for step, batch in enumerate(train_dataloader):
            batch = {k: v.to(device) for k, v in batch.items()}
            outputs = model(**batch)
            loss = outputs.loss / args.gradient_accumulation_steps
            loss.backward()
            if step % args.gradient_accumulation_steps == 0 or step == len(train_dataloader) - 1:
                optimizer.step()
                lr_scheduler.step()
                optimizer.zero_grad()
                completed_steps += 1
            if rank == 0 and step % 10 == 0:
                logger.info("epoch %d step %d loss %.4f", epoch, step, outputs.loss.item())
            if completed_steps >= args.max_train_steps:
                break

        model.eval()
        losses = []
        for batch in eval_dataloader:
            with torch.no_grad():
                losses.append(model(**{k: v.to(device) for k, v in batch.items()}).loss)
        eval_loss = torch.stack(losses).mean()
        logger.info("epoch %d: perplexity %.3f eval_loss %.4f", epoch, math.exp(eval_loss), eval_loss)

    if args.output_dir and rank == 0:
        unwrapped = model.module if distributed else model
        unwrapped.save_pretrained(args.output_dir)
        with open(os.path.join(args.output_dir, "all_results.json"), "w") as f:
            json.dump({"eval_loss": eval_loss.item()}, f)
    if distributed:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
