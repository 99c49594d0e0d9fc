"""Optimizers: the original BERT's Adam, AdamW, and LAMB for large batches.

All three keep two running means of each weight's gradient, m of itself and v of its square, and move the weight by
m / (sqrt(v) + eps) and towards 0 by the weight decay. Adam is the original code's: it does not correct m and v for
having started at 0. AdamW and LAMB do, and LAMB scales the step of each matrix to the norm of that matrix (queries,
keys and values are one here). LayerNorms and biases are neither decayed nor scaled.

On request a running mean of the weights is kept, too. It changes more slowly than the weights and, while the learning
rate is high, scores better. `averaged` puts it in their place for a while.

An update is two calls, `gradient_norm` and `step`, with the loop's decision between them. The step clips, in the kernel
that reads the gradients anyway. Where the norm is not finite nothing is changed. Adam and AdamW check that on the
device, so the loop can read the norm later and need not wait for it.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from bertworks.errors import CorruptFile
from bertworks.models.names import GLOBAL_STEP, SLOTS
from bertworks.nn.layers import LayerNorm
from bertworks.recipe import OptimSettings
from bertworks.train.distributed import fill, own_parts, whole

_MEAN = "mean"  # of a weight, beside the slots
_SOME, _MANY = 8, 512  # a mean over this many updates or more is updated at every eighth: the same value at less cost
_NEVER_CORRECTED = 1e30  # after so many updates beta ** updates is 0, and the correction 1


class _Lists(NamedTuple):
    """Weights that are treated alike, with their gradients and state side by side, as torch's kernels want them."""

    weights: list[Tensor]
    grads: list[Tensor]
    m: list[Tensor]
    v: list[Tensor]
    is_decayed: bool
    scale: float  # of the learning rate


def decayed_names(net: nn.Module) -> set[str]:
    """Return the names of the parameters that weight decay is for: all but biases and what is in a LayerNorm."""
    in_norms = {id(p) for module in net.modules() if isinstance(module, LayerNorm) for p in module.parameters()}
    named = net.named_parameters()
    return {name for name, p in named if id(p) not in in_norms and "bias" not in name.rpartition(".")[2]}


class Optimizer:
    """Changes a network's fp32 weights.

    Args:
        net: the network, on the device where it is trained; its parameters give the state its names.
        settings: which optimizer, and its numbers.
        scales: of the learning rate, by name of a parameter; 1 for those that are not named.
        idle_scale: that of `idle`.
        reach: over about how many updates the mean of the weights goes; 0: there is none.

    Attributes:
        num_steps: updates made or skipped, over all starts of a run.
        idle: by how much a weight that is decayed and never has a gradient has shrunk.
        idle_mean: the mean of it.
    """

    def __init__(
        self,
        net: nn.Module,
        settings: OptimSettings,
        scales: Mapping[str, float] | None = None,
        idle_scale: float = 1.0,
        reach: float = 0.0,
    ) -> None:
        self.settings, self._scales, self._idle_scale = settings, scales or {}, idle_scale
        self._reach, self.num_steps = reach, 0
        self._weights = {name: p for name, p in net.named_parameters() if p.requires_grad}
        self._decayed = decayed_names(net)
        self._m, self._v = (
            {name: torch.zeros_like(p, requires_grad=False) for name, p in self._weights.items()} for _ in SLOTS
        )
        self._means = {name: p.detach().clone() for name, p in self._weights.items()} if reach else {}
        # On the device, because only the device knows whether an update was skipped.
        device = next(iter(self._weights.values())).device
        self._num_updates = torch.zeros((), dtype=torch.int64, device=device)
        self.idle, self.idle_mean = (torch.ones((), dtype=torch.float64, device=device) for _ in range(2))

    def weights(self) -> list[Tensor]:
        """Return what is changed, always in the same order."""
        return list(self._weights.values())

    def gradients(self) -> list[Tensor]:
        """Return the gradients, in the order of their weights."""
        return [weight.grad for weight in self._weights.values() if weight.grad is not None]

    def clear_gradients(self) -> None:
        """Forget the gradients, which are of no use after a step."""
        for weight in self._weights.values():
            weight.grad = None

    def gradient_norm(self) -> Tensor:
        """Return the norm of all gradients as one vector; it stays on the device."""
        return whole(nn.utils.get_total_norm(self.gradients()))

    @torch.no_grad()
    def step(self, lr: float, norm: Tensor) -> None:
        """Make an update; weights without a gradient stay as they are. The gradients are of no use afterwards.

        Args:
            lr: the learning rate.
            norm: of all gradients. Where it exceeds the settings' clip they are scaled down to that; where it is not
                finite, nothing is changed.
        """
        finite = norm.isfinite()
        self._num_updates += finite
        self.idle *= 1 - finite.double() * (lr * self._idle_scale * self.settings.weight_decay)
        # The original multiplies by clip / max(norm, clip); either way it is exactly 1 for a norm within the bound.
        clip = self.settings.clip
        divisor = norm.clamp(min=clip).div(clip).float() if clip else torch.ones_like(norm, dtype=torch.float32)
        for lists in self._lists():
            if self.settings.name != "lamb":
                self._adam(lists, lr * lists.scale, divisor, skip=1 - finite.float())
            elif finite:  # waits for the device, which is little beside the large batches that LAMB is for
                self._lamb(lists, lr * lists.scale, divisor)
        self.num_steps += 1
        every = _SOME if self._reach >= _MANY else 1
        if self._reach and self.num_steps % every == 0:
            self._take_in(finite, every)

    def _take_in(self, finite: Tensor, every: int) -> None:
        """Move the means towards the weights: they are plain means until there were as many updates as they go over."""
        share = finite.double() * every / self._num_updates.clamp(min=every, max=max(every, self._reach))
        weights, means = own_parts(self._weights.values()), own_parts(self._means.values())
        moves = torch._foreach_sub(weights, means)
        torch._foreach_mul_(moves, share.to(moves[0].dtype))
        torch._foreach_add_(means, moves)
        self.idle_mean += share * (self.idle - self.idle_mean)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Have the means of the weights in their place for a while; without a reach nothing is changed."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        if not self._reach:
            return
        weights, means = [*self._weights.values(), self.idle], [*self._means.values(), self.idle_mean]
        for weight, mean in zip(own_parts(weights), own_parts(means), strict=True):
            kept = weight.clone()
            weight.copy_(mean)
            mean.copy_(kept)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state under the weights' names, and the number of updates; the tensors are not copies."""
        state = {GLOBAL_STEP: self._num_updates}
        for slot, tensors in zip(SLOTS, (self._m, self._v), strict=True):
            state |= {f"{name}.{slot}": tensor for name, tensor in tensors.items()}
        return state | {f"{name}.{_MEAN}": tensor for name, tensor in self._means.items()}

    def load_state_dict(self, state: Mapping[str, Tensor], where: str = "the optimizer's state") -> None:
        """Take over a state of the same network; `where` it is from is what an error calls it."""
        own = self.state_dict()
        for name in sorted(own.keys() | state.keys()):
            if name not in own or name not in state:
                message = "has no tensor" if name in own else "has a tensor that the network does not know:"
                raise CorruptFile(f"{where} {message} {name:.200}; it is of another network, or damaged")
            ours, theirs = own[name], state[name]
            if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
                kinds = [f"{tensor.dtype} {list(tensor.shape)}".removeprefix("torch.") for tensor in (theirs, ours)]
                raise CorruptFile(f"{where}: {name} is {kinds[0]}, but the network needs {kinds[1]}")
        for name, tensor in own.items():
            fill(tensor, state[name])

    def _lists(self) -> Iterable[_Lists]:
        """Return the weights that have gradients, those that are decayed first."""
        found: dict[tuple[bool, float], _Lists] = {}
        for name, weight in sorted(self._weights.items(), key=lambda item: item[0] not in self._decayed):
            if weight.grad is None:
                continue
            key = name in self._decayed, self._scales.get(name, 1.0)
            lists = found.setdefault(key, _Lists([], [], [], [], *key))
            lists.weights.append(weight)
            lists.grads.append(weight.grad)
            lists.m.append(self._m[name])
            lists.v.append(self._v[name])
        return found.values()

    def _adam(self, lists: _Lists, lr: float, divisor: Tensor, skip: Tensor) -> None:
        """Change weights by torch's fused AdamW, whose correction of m and v goes by a number of updates."""
        settings, count = self.settings, self._num_updates.float()
        if settings.name == "adam":
            count = torch.full_like(count, _NEVER_CORRECTED)
        torch._fused_adamw_(
            own_parts(lists.weights),
            own_parts(lists.grads),
            own_parts(lists.m),
            own_parts(lists.v),
            [],
            [count] * len(lists.weights),
            lr=lr,
            beta1=settings.beta1,
            beta2=settings.beta2,
            weight_decay=settings.weight_decay if lists.is_decayed else 0.0,
            eps=settings.eps,
            amsgrad=False,
            maximize=False,
            grad_scale=divisor,
            found_inf=skip,
        )

    def _lamb(self, lists: _Lists, lr: float, divisor: Tensor) -> None:
        """Change weights as LAMB's paper (You et al., 2020) says in its second algorithm."""
        settings, (weights, grads, m, v, is_decayed, _) = self.settings, lists
        # In float64, for 1 - 0.999 would have four digits in float32.
        kept = [1 - beta ** self._num_updates.double() for beta in (settings.beta1, settings.beta2)]
        torch._foreach_div_(grads, divisor)
        torch._foreach_lerp_(m, grads, 1 - settings.beta1)
        torch._foreach_mul_(v, settings.beta2)
        torch._foreach_addcmul_(v, grads, grads, 1 - settings.beta2)
        updates, roots = torch._foreach_div(m, kept[0]), torch._foreach_div(v, kept[1])
        torch._foreach_sqrt_(roots)
        torch._foreach_add_(roots, settings.eps)
        torch._foreach_div_(updates, roots)
        if is_decayed:
            torch._foreach_add_(updates, weights, alpha=settings.weight_decay)
            # How much longer each weight is than its update; 1 where either is 0.
            norms = [
                torch.stack([whole(norm) for norm in torch._foreach_norm(some)]) for some in (weights, list(updates))
            ]
            ratios = torch.where((norms[0] > 0) & (norms[1] > 0), norms[0] / norms[1], 1.0)
            for update, ratio in zip(updates, ratios.unbind(), strict=True):
                update.mul_(ratio)
        torch._foreach_add_(weights, updates, alpha=-lr)


def learning_rate(settings: OptimSettings, step: int, total_steps: int) -> float:
    """Return the rate of the next update of a run, of which `step` updates are made.

    A pure function, so that a resumed run needs no state of it. As in the original code the rate of an update is
    computed from the number of updates before it, so the first one of a warm-up has rate 0. And a decay is computed
    over the whole run, warm-up included: it does not begin at 1 where the warm-up ends, but where it would be without
    one. GPT-1's cosine is of the same kind.
    """
    share = min(step / total_steps, 1.0)
    warmup = settings.warmup if settings.warmup >= 1 else int(settings.warmup * total_steps)
    return settings.lr * (step / warmup if step < warmup else _decayed(settings, share))


def learning_rate_by_clock(settings: OptimSettings, step: int, share: float) -> float:
    """Return the rate of the next update when this share of the run's time has passed; more than 1 counts as 1.

    A warm-up given in steps is still counted in steps.
    """
    share = min(share, 1.0)
    done = step if settings.warmup >= 1 else share
    return settings.lr * (done / settings.warmup if done < settings.warmup else _decayed(settings, share))


def _decayed(settings: OptimSettings, share: float) -> float:
    if settings.schedule == "linear":
        return 1 - share
    if settings.schedule == "cosine":
        return (1 + math.cos(math.pi * share)) / 2
    if settings.schedule == "wsd":
        return min(1.0, (1 - share) / settings.decay_share)
    assert settings.schedule == "constant", f"no schedule is called {settings.schedule}"
    return 1.0
