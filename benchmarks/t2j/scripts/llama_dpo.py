"""Direct preference optimisation in the form of the paper's own code: BasicTrainer, concatenated forward."""
import contextlib
import random
from types import SimpleNamespace

import torch
import torch.nn as nn
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM

CONFIG = SimpleNamespace(
    seed=0, batch_size=16, gradient_accumulation_steps=2, n_examples=256, lr=1e-3, warmup_steps=4,
    max_grad_norm=10.0, optimizer="RMSprop", eval_every=96, n_eval=32,
    loss=SimpleNamespace(name="dpo", beta=0.2, label_smoothing=0.1, reference_free=False),
)


def preference_loss(policy_chosen_logps, policy_rejected_logps, reference_chosen_logps, reference_rejected_logps,
                    beta, label_smoothing=0.0, ipo=False, reference_free=False):
    pi_logratios = policy_chosen_logps - policy_rejected_logps
    ref_logratios = reference_chosen_logps - reference_rejected_logps
    if reference_free:
        ref_logratios = 0
    logits = pi_logratios - ref_logratios
    if ipo:
        losses = (logits - 1 / (2 * beta)) ** 2
    else:
        losses = -F.logsigmoid(beta * logits) * (1 - label_smoothing) - F.logsigmoid(-beta * logits) * label_smoothing
    chosen_rewards = beta * (policy_chosen_logps - reference_chosen_logps).detach()
    rejected_rewards = beta * (policy_rejected_logps - reference_rejected_logps).detach()
    return losses, chosen_rewards, rejected_rewards


def get_batch_logps(logits, labels, average_log_prob=False):
    assert logits.shape[:-1] == labels.shape
    labels = labels[:, 1:].clone()
    logits = logits[:, :-1, :]
    loss_mask = labels != -100
    labels[labels == -100] = 0
    per_token_logps = torch.gather(logits.log_softmax(-1), dim=2, index=labels.unsqueeze(2)).squeeze(2)
    if average_log_prob:
        return (per_token_logps * loss_mask).sum(-1) / loss_mask.sum(-1)
    return (per_token_logps * loss_mask).sum(-1)


def pad_to_length(tensor, length, pad_value):
    if tensor.size(1) >= length:
        return tensor
    return torch.cat([tensor, tensor.new_full((tensor.size(0), length - tensor.size(1)), pad_value)], dim=1)


def concatenated_inputs(batch):
    """One batch of chosen and then rejected, padded to one length."""
    max_length = max(batch["chosen_input_ids"].shape[1], batch["rejected_input_ids"].shape[1])
    joined = {}
    for key in ("input_ids", "attention_mask", "labels"):
        pad_value = -100 if key == "labels" else 0
        joined["concatenated_" + key] = torch.cat(
            [pad_to_length(batch[f"{side}_{key}"], max_length, pad_value) for side in ("chosen", "rejected")])
    return joined


def get_batch_iterator(n_examples, batch_size, seed):
    """Sorting digits: the chosen answer is sorted, the rejected one is not."""
    rng = random.Random(seed)
    examples = []
    for _ in range(n_examples):
        digits = [rng.randrange(10) for _ in range(rng.randint(3, 6))]
        wrong = digits[:]
        rng.shuffle(wrong)
        prompt = [1] + [d + 4 for d in digits] + [3]
        examples.append((prompt, [d + 4 for d in sorted(digits)] + [2], [d + 4 for d in wrong[:rng.randint(2, 6)]] + [2]))
    rng.shuffle(examples)
    for start in range(0, n_examples, batch_size):
        batch = {}
        for side, column in (("chosen", 1), ("rejected", 2)):
            rows = [(e[0] + e[column], [-100] * len(e[0]) + e[column]) for e in examples[start:start + batch_size]]
            width = max(len(ids) for ids, _ in rows)
            batch[f"{side}_input_ids"] = torch.tensor([ids + [0] * (width - len(ids)) for ids, _ in rows])
            batch[f"{side}_attention_mask"] = torch.tensor([[1] * len(ids) + [0] * (width - len(ids)) for ids, _ in rows])
            batch[f"{side}_labels"] = torch.tensor([lab + [-100] * (width - len(lab)) for _, lab in rows])
        yield batch


class BasicTrainer:
    def __init__(self, policy, config, reference_model):
        self.policy, self.config, self.reference_model = policy, config, reference_model
        self.train_iterator = get_batch_iterator(config.n_examples, config.batch_size, config.seed)
        self.eval_batches = list(get_batch_iterator(config.n_eval, config.batch_size, config.seed + 1))

    def concatenated_forward(self, model, batch):
        concatenated = concatenated_inputs(batch)
        all_logits = model(concatenated["concatenated_input_ids"],
                           attention_mask=concatenated["concatenated_attention_mask"]).logits.to(torch.float32)
        all_logps = get_batch_logps(all_logits, concatenated["concatenated_labels"])
        n = batch["chosen_input_ids"].shape[0]
        return all_logps[:n], all_logps[n:]

    def get_batch_metrics(self, batch, train=True):
        guard = contextlib.nullcontext() if train else torch.no_grad()
        with guard:
            policy_chosen_logps, policy_rejected_logps = self.concatenated_forward(self.policy, batch)
        with torch.no_grad():
            reference_chosen_logps, reference_rejected_logps = self.concatenated_forward(self.reference_model, batch)
        losses, chosen_rewards, rejected_rewards = preference_loss(
            policy_chosen_logps, policy_rejected_logps, reference_chosen_logps, reference_rejected_logps,
            beta=self.config.loss.beta, label_smoothing=self.config.loss.label_smoothing,
            reference_free=self.config.loss.reference_free)
        accuracies = (chosen_rewards > rejected_rewards).float()
        return losses.mean(), {"accuracy": accuracies.mean().item(), "margin": (chosen_rewards - rejected_rewards).mean().item()}

    def train(self):
        self.optimizer = getattr(torch.optim, self.config.optimizer)(self.policy.parameters(), lr=self.config.lr)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lr_lambda=lambda step: min(1.0, (step + 1) / (self.config.warmup_steps + 1)))
        example_counter, last_eval = 0, 0
        for batch in self.train_iterator:
            if example_counter - last_eval >= self.config.eval_every:
                self.evaluate(example_counter)
                last_eval = example_counter
            self.policy.train()
            rows = batch["chosen_input_ids"].shape[0] // self.config.gradient_accumulation_steps
            for k in range(self.config.gradient_accumulation_steps):
                microbatch = {key: value[k * rows:(k + 1) * rows] for key, value in batch.items()}
                loss, metrics = self.get_batch_metrics(microbatch)
                (loss / self.config.gradient_accumulation_steps).backward()
            grad_norm = self.clip_gradient()
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad()
            example_counter += self.config.batch_size
            print(f"{example_counter} examples: loss {loss.item():.4f} acc {metrics['accuracy']:.2f} norm {grad_norm:.2f}")

    def evaluate(self, seen):
        self.policy.eval()
        scores = [self.get_batch_metrics(b, train=False)[1]["accuracy"] for b in self.eval_batches]
        print(f"eval after {seen}: accuracy {sum(scores) / len(scores):.3f}")

    def clip_gradient(self):
        return torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.config.max_grad_norm).item()


def disable_dropout(model: nn.Module):
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0


if __name__ == "__main__":
    torch.manual_seed(CONFIG.seed)
    torch.set_num_threads(1)
    shape = LlamaConfig(vocab_size=16, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                        num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=32,
                        pad_token_id=0, bos_token_id=1, eos_token_id=2)
    policy = LlamaForCausalLM(shape)
    reference_model = LlamaForCausalLM(shape)
    reference_model.load_state_dict(policy.state_dict())
    for network in (policy, reference_model):
        disable_dropout(network)
    BasicTrainer(policy, CONFIG, reference_model).train()
