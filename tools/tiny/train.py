"""Trains the bundled model with transformers' modules. One call is one leg; --resume goes on where a leg ended.

    python tools/tiny/train.py --data DATA --out OUT [--kind dense|moe] [--steps N] [--minutes M] [--resume OUT]

DATA: what prepare.py made. OUT/model-*.safetensors, OUT/optimizer-*.safetensors (shards below 16 MiB), OUT/log.json with
settings, versions and losses. Without --steps, as many are planned as fit into --minutes; the log says how many.
Batches depend on the seed and the step alone, so a resumed training sees what an uninterrupted one would.
Needs torch, transformers, numpy and safetensors; a GPU in practice.
"""

import argparse
import json
import math
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
import transformers

import model as models
import shards
from muon import Optimizer

TIME, CHAT_TIME = 1024, 256


def arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--data", type=Path, required=True)
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--resume", type=Path)
    p.add_argument("--kind", choices=["dense", "moe"], default="dense")
    p.add_argument("--steps", type=int, default=0, help="steps in all legs together; 0 plans what fits into --minutes")
    p.add_argument("--minutes", type=float, default=9.0, help="time of this leg")
    p.add_argument("--rows", type=int, default=48, help="rows of prose a step")
    p.add_argument("--chat-rows", type=int, default=32)
    p.add_argument("--rate", type=float, default=4e-3)
    p.add_argument("--warmup", type=int, default=100)
    p.add_argument("--weight-decay", type=float, default=0.2)
    p.add_argument("--dropout", type=float, default=0.1)
    p.add_argument("--chat-weight", type=float, default=0.2)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--every", type=int, default=250, help="steps between validations")
    p.add_argument("--weights-only", action="store_true", help="keep no optimizer state")
    p.add_argument("--no-compile", action="store_true")
    return p.parse_args()


class Data:
    """Ids on the device, and batches of them."""

    def __init__(self, folder: Path, device: str, seed: int):
        self.device, self.seed = device, seed
        self.about = json.loads((folder / "prose.json").read_text())

        def ids(name: str) -> torch.Tensor:
            return torch.from_numpy(np.load(folder / f"{name}.npy").astype(np.int32)).to(device)

        self.prose, self.chat, self.learned = ids("prose"), ids("chat"), ids("chat_learned")
        self.measured = {name: ids(name) for name in self.about["measured"]}
        self.begin = torch.tensor([s["begin"] for s in self.about["sources"]])
        self.length = torch.tensor([s["end"] - s["begin"] for s in self.about["sources"]])
        self.share = self.length * torch.tensor([s["weight"] for s in self.about["sources"]])

    def batch(self, step: int, rows: int, chat_rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Prose [rows, TIME + 1], conversations [chat_rows, CHAT_TIME + 1] and which of their ids are answers."""
        random = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        source = torch.multinomial(self.share.double(), rows, replacement=True, generator=random)
        room = self.length[source] - TIME - 1
        at = self.begin[source] + (torch.rand(rows, generator=random, dtype=torch.float64) * room).long()
        prose = self.prose[(at[:, None] + torch.arange(TIME + 1)).to(self.device)]
        chosen = torch.randint(len(self.chat), (chat_rows,), generator=random).to(self.device)
        return prose.long(), self.chat[chosen].long(), self.learned[chosen]


def head_losses(norm_out: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy((norm_out @ weight.T).float().flatten(0, 1), targets.flatten(), reduction="none")


def rate_at(step: int, steps: int, args: argparse.Namespace) -> float:
    """Warm-up, then linearly to zero."""
    return args.rate * min((step + 1) / args.warmup, (steps - step) / max(steps - args.warmup, 1))


class Trainer:
    def __init__(self, args: argparse.Namespace):
        self.args, self.device = args, "cuda" if torch.cuda.is_available() else "cpu"
        torch.set_float32_matmul_precision("high")
        torch.manual_seed(args.seed)
        self.data = Data(args.data, self.device, args.seed)
        tokenizer = transformers.AutoTokenizer.from_pretrained(args.data / "tokenizer")
        models.use_fast_functions()
        self.model = models.build(args.kind, len(tokenizer), tokenizer.eos_token_id, tokenizer.pad_token_id)
        self.model.to(self.device)
        models.dropped(self.model, args.dropout)
        self.optimizer = Optimizer(self.model, args.weight_decay)
        self.first, self.steps, self.log = 0, args.steps, []
        if args.resume:
            self.restore(args.resume)
        self.losses = head_losses
        # Routing depends on values; such graphs are not worth compiling.
        if not args.no_compile and args.kind == "dense":
            torch._dynamo.config.recompile_limit = 64
            torch._dynamo.config.suppress_errors = True
            for layer in self.model.model.layers:
                layer.compile(dynamic=False)
            self.losses = torch.compile(head_losses, dynamic=False)

    def restore(self, folder: Path) -> None:
        before = json.loads((folder / "log.json").read_text())
        self.first, self.steps, self.log = before["next_step"], before["steps"], before["log"]
        missing, unexpected = self.model.load_state_dict(shards.load(folder, "model"), strict=False)
        assert missing in ([], ["lm_head.weight"]) and not unexpected, (missing, unexpected)
        self.optimizer.restore(shards.load(folder, "optimizer"))

    def loss(self, ids: torch.Tensor) -> torch.Tensor:
        """Of each position, in nats."""
        with torch.autocast(self.device, torch.bfloat16):
            x = models.hidden(self.model, ids[:, :-1])
            return self.losses(x, self.model.model.embed_tokens.weight, ids[:, 1:])

    def step(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        prose, chat, learned = self.data.batch(number, self.args.rows, self.args.chat_rows)
        of_prose = self.loss(prose).mean()
        of_prose.backward()
        answers = learned[:, 1:].flatten()
        of_chat = (self.loss(chat) * answers).sum() / answers.sum()
        (of_chat * self.args.chat_weight).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step(number, rate_at(number, self.steps or 10**9, self.args))
        return of_prose.detach(), of_chat.detach()

    @torch.no_grad()
    def bits_per_byte(self, name: str) -> float:
        """In windows of TIME side by side: an upper bound that is quick to have."""
        self.model.eval()
        ids = self.data.measured[name].long()
        rows = (len(ids) - 1) // TIME
        windows = torch.stack([ids[i * TIME : i * TIME + TIME + 1] for i in range(rows)])
        nats = sum(self.loss(part).sum().item() for part in windows.split(self.args.rows))
        self.model.train()
        return nats / math.log(2) / (self.data.about["measured"][name]["bytes"] * rows * TIME / len(ids))

    def measure(self, step: int, losses: tuple, seconds: float) -> None:
        bits = {name: round(self.bits_per_byte(name), 4) for name in self.data.measured if name != "persuasion"}
        entry = {"step": step, "prose": round(losses[0].item(), 4), "chat": round(losses[1].item(), 4)}
        entry |= {"bits_per_byte": bits, "seconds": round(seconds, 1)}
        self.log.append(entry)
        print(json.dumps(entry), flush=True)

    def run(self) -> None:
        args, start = self.args, time.monotonic()
        deadline = start + args.minutes * 60
        self.model.train()
        step, timed = self.first, None
        while not self.steps or step < self.steps:
            losses = self.step(step)
            step += 1
            done = step - self.first
            if done == 10 or done == 40:
                # Compilation is over by step 10; the clock of 30 steps plans the rest.
                losses[0].item()
                now = time.monotonic()
                if done == 40:
                    each = (now - timed) / 30
                    if not self.steps:
                        self.steps = step + int((deadline - now) * 0.97 / each)
                    print(f"{each * 1e3:.1f} ms a step after {now - start:.0f} s; {self.steps} steps", flush=True)
                timed = now
            if step % args.every == 0 or step == self.steps:
                self.measure(step, losses, time.monotonic() - start)
            if time.monotonic() > deadline:
                break
        if not self.log or self.log[-1]["step"] != step:
            self.measure(step, losses, time.monotonic() - start)
        self.save(step, time.monotonic() - start)

    def save(self, step: int, seconds: float) -> None:
        self.args.out.mkdir(parents=True, exist_ok=True)
        tensors = {n: p for n, p in self.model.state_dict().items() if n != "lm_head.weight"}
        shards.save(tensors, self.args.out, "model")
        if not self.args.weights_only:
            shards.save(self.optimizer.tensors(), self.args.out, "optimizer")
        about = {
            "settings": {n: str(v) if isinstance(v, Path) else v for n, v in vars(self.args).items()},
            "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
            "device": torch.cuda.get_device_name() if self.device == "cuda" else "CPU",
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "steps": self.steps,
            "next_step": step,
            "seconds": round(seconds, 1),
            "bits_per_byte": {n: round(self.bits_per_byte(n), 4) for n in self.data.measured},
            "log": self.log,
        }
        (self.args.out / "log.json").write_text(json.dumps(about, indent=1) + "\n")
        print(json.dumps({n: v for n, v in about.items() if n != "log"}), flush=True)


if __name__ == "__main__":
    Trainer(arguments()).run()
