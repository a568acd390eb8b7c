"""DPO of GPT-2 on made-up reviews: friendly continuations are preferred to unfriendly ones."""
import argparse
import copy

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel, get_linear_schedule_with_warmup

WORDS = ("<pad> <eos> the this movie film book plot was is felt really quite very so "
         "good great lovely moving bad boring awful dull and but i we liked enjoyed hated regret it").split()
GOOD, BAD = ["good", "great", "lovely", "moving"], ["bad", "boring", "awful", "dull"]


def parse_args():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--beta", type=float, default=0.1)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--batch_size", type=int, default=8)
    p.add_argument("--pairs", type=int, default=96)
    p.add_argument("--warmup_steps", type=int, default=4)
    p.add_argument("--max_grad_norm", type=float, default=1.0)
    p.add_argument("--seed", type=int, default=42)
    p.add_argument("--output", default=None)
    return p.parse_args()


def build_pairs(n, seed, length=14):
    """Returns chosen and rejected ids, and a mask of the tokens of the answer, all of shape (n, length)."""
    g = torch.Generator().manual_seed(seed)
    pick = lambda options: options[int(torch.randint(len(options), (1,), generator=g))]
    chosen, rejected, chosen_mask, rejected_mask = [], [], [], []
    for _ in range(n):
        prompt = [pick(["the", "this"]), pick(["movie", "film", "book", "plot"]), pick(["was", "is", "felt"])]
        opening = [pick(["really", "quite", "very", "so"])] * int(torch.randint(1, 3, (1,), generator=g))
        better = opening + [pick(GOOD), "and", "i", pick(["liked", "enjoyed"]), "it", "<eos>"]
        worse = opening + [pick(BAD), "but", "we", pick(["hated", "regret"]), "it", "<eos>"]
        if int(torch.randint(2, (1,), generator=g)):
            worse = worse[:-4] + ["<eos>"]
        for answer, ids, mask in ((better, chosen, chosen_mask), (worse, rejected, rejected_mask)):
            row = [WORDS.index(w) for w in prompt + answer]
            pad = length - len(row)
            ids.append(row + [0] * pad)
            mask.append([0] * len(prompt) + [1] * len(answer) + [0] * pad)
    return tuple(torch.tensor(rows) for rows in (chosen, rejected, chosen_mask, rejected_mask))


def sequence_logps(model, ids, answer_mask):
    logits = model(ids, attention_mask=(ids != 0).long()).logits[:, :-1]
    logps = torch.gather(logits.log_softmax(-1), 2, ids[:, 1:].unsqueeze(2)).squeeze(2)
    return (logps * answer_mask[:, 1:]).sum(-1)


def dpo_loss(policy, reference, batch, beta):
    chosen, rejected, chosen_mask, rejected_mask = batch
    with torch.no_grad():
        ref_chosen = sequence_logps(reference, chosen, chosen_mask)
        ref_rejected = sequence_logps(reference, rejected, rejected_mask)
    pi_chosen = sequence_logps(policy, chosen, chosen_mask)
    pi_rejected = sequence_logps(policy, rejected, rejected_mask)
    chosen_rewards = beta * (pi_chosen - ref_chosen)
    rejected_rewards = beta * (pi_rejected - ref_rejected)
    loss = -F.logsigmoid(chosen_rewards - rejected_rewards).mean()
    accuracy = (chosen_rewards > rejected_rewards).float().mean()
    return loss, accuracy.detach()


def main():
    args = parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    config = GPT2Config(vocab_size=len(WORDS), n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=1,
                        eos_token_id=1, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    policy = GPT2LMHeadModel(config)
    reference = copy.deepcopy(policy).eval()
    reference.requires_grad_(False)

    data = TensorDataset(*build_pairs(args.pairs, args.seed))
    loader = DataLoader(data, batch_size=args.batch_size, shuffle=True)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=args.lr, weight_decay=0.01)
    scheduler = get_linear_schedule_with_warmup(optimizer, args.warmup_steps, args.epochs * len(loader))

    step = 0
    for epoch in range(args.epochs):
        policy.train()
        for batch in loader:
            loss, accuracy = dpo_loss(policy, reference, batch, args.beta)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(policy.parameters(), args.max_grad_norm)
            optimizer.step()
            scheduler.step()
            step += 1
            if step % 4 == 0:
                print(f"step {step} loss {loss.item():.4f} accuracy {accuracy.item():.2f} "
                      f"lr {scheduler.get_last_lr()[0]:.2e}")
    if args.output:
        policy.save_pretrained(args.output)


if __name__ == "__main__":
    main()
