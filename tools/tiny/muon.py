"""The optimizer: Muon for matrices, AdamW for everything else."""

import torch


def orthogonalized(update: torch.Tensor, steps: int = 5) -> torch.Tensor:
    """The nearest orthogonal matrices, by Newton-Schulz steps (Jordan et al., "Muon", 2024); [.., rows, columns]."""
    x = update.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    x = x.transpose(-1, -2) if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        a = x @ x.transpose(-1, -2)
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * (a @ a)) @ x
    return x.transpose(-1, -2) if tall else x


class Optimizer:
    """State and steps. Matrices of one shape are updated together."""

    def __init__(self, model: torch.nn.Module, weight_decay: float):
        self.weight_decay = weight_decay
        self.parameters = dict(model.named_parameters())
        self.matrices: dict[tuple, list[str]] = {}
        self.others: list[str] = []
        for name, p in self.parameters.items():
            if p.ndim >= 2 and min(p.shape[-2:]) >= 64 and "embed" not in name:
                self.matrices.setdefault(tuple(p.shape), []).append(name)
            else:
                self.others.append(name)
        self.state = {n: torch.zeros_like(p) for n, p in self.parameters.items()}
        self.squares = {n: torch.zeros_like(self.parameters[n]) for n in self.others}

    @torch.no_grad()
    def step(self, number: int, rate: float) -> None:
        """Step `number`, counted from 0, with that learning rate."""
        for names in self.matrices.values():
            momentum, parameters = [self.state[n] for n in names], [self.parameters[n] for n in names]
            grads = [p.grad for p in parameters]
            torch._foreach_lerp_(momentum, grads, 0.05)
            torch._foreach_lerp_(grads, momentum, 0.95)
            update = orthogonalized(torch.stack(grads)).to(parameters[0].dtype)
            # As large as AdamW's updates are (Liu et al., "Muon is scalable", 2025).
            scale = 0.2 * max(update.shape[-2:]) ** 0.5
            torch._foreach_mul_(parameters, 1 - rate * self.weight_decay)
            torch._foreach_add_(parameters, list(update.unbind()), alpha=-rate * scale)
        parameters = [self.parameters[n] for n in self.others]
        grads = [p.grad for p in parameters]
        first, second = [self.state[n] for n in self.others], [self.squares[n] for n in self.others]
        torch._foreach_lerp_(first, grads, 0.1)
        torch._foreach_mul_(second, 0.97)
        torch._foreach_addcmul_(second, grads, grads, 0.03)
        below = torch._foreach_sqrt(torch._foreach_div(second, 1 - 0.97 ** (number + 1)))
        torch._foreach_add_(below, 1e-8)
        torch._foreach_addcdiv_(parameters, first, below, value=-rate / (1 - 0.9 ** (number + 1)))
        for p in self.parameters.values():
            p.grad = None

    def tensors(self) -> dict[str, torch.Tensor]:
        """What a later leg of the training needs, in half the bytes."""
        parts = {f"first.{n}": t for n, t in self.state.items()} | {f"second.{n}": t for n, t in self.squares.items()}
        return {n: t.to(torch.bfloat16).contiguous() for n, t in parts.items()}

    @torch.no_grad()
    def restore(self, tensors: dict[str, torch.Tensor]) -> None:
        for kind, own in [("first", self.state), ("second", self.squares)]:
            for name, tensor in own.items():
                tensor.copy_(tensors[f"{kind}.{name}"])
