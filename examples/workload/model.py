"""A two-layer network on synthetic samples, and the order in which they are trained."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from workload.settings import SAMPLES

Floats = NDArray[np.float32]

_INPUTS: Final = 32
_CLASSES: Final = 10
_RATE: Final = 0.05
_MOMENTUM: Final = 0.9


class Data:
    """All samples, labelled by a fixed network, and each epoch's order, from the seed alone."""

    def __init__(self, seed: int) -> None:
        made = np.random.default_rng([seed, 0])
        self.x: Floats = made.standard_normal((SAMPLES, _INPUTS), dtype=np.float32)
        teacher = made.standard_normal((_INPUTS, _CLASSES), dtype=np.float32)
        self.y = np.argmax(np.tanh(self.x) @ teacher, axis=1)
        self._order = Order(seed)

    def batch(self, step: int, size: int, rank: int, ranks: int) -> NDArray[np.int64]:
        """Which samples a rank trains in a step (the first is 1)."""
        return self._order.batch(step, size)[rank::ranks]


class Order:
    """Samples by step: each epoch is a permutation of its own."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._epoch = -1
        self._indices: NDArray[np.int64] = np.empty(0, np.int64)

    def batch(self, step: int, size: int) -> NDArray[np.int64]:
        """All samples of a step."""
        epoch, position = place(step, size)
        if epoch != self._epoch:
            self._epoch = epoch
            self._indices = np.random.default_rng([self._seed, 1, epoch]).permutation(SAMPLES).astype(np.int64)
        return self._indices[position : position + size]


def place(step: int, size: int) -> tuple[int, int]:
    """Epoch and position in it at which a step begins."""
    return divmod((step - 1) * size, SAMPLES)


@dataclass(slots=True)
class Model:
    """Weights and the optimizer's momentum, as flat arrays and as named views of them."""

    width: int
    seed: int
    weights: Floats = field(init=False)
    momentum: Floats = field(init=False)
    gradient: Floats = field(init=False)

    def __post_init__(self) -> None:
        size = sum(int(np.prod(shape)) for shape in self.shapes().values())
        made = np.random.default_rng([self.seed, 2])
        self.weights = made.standard_normal(size, dtype=np.float32) * np.float32(0.1)
        self.momentum = np.zeros(size, np.float32)
        self.gradient = np.zeros(size, np.float32)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name of each tensor of the network → its shape, in the order in which they lie."""
        return {
            "layer1.weight": (_INPUTS, self.width),
            "layer1.bias": (self.width,),
            "layer2.weight": (self.width, _CLASSES),
            "layer2.bias": (_CLASSES,),
        }

    def views(self, flat: Floats) -> dict[str, Floats]:
        """The tensors inside a flat array."""
        found, at = {}, 0
        for name, shape in self.shapes().items():
            size = int(np.prod(shape))
            found[name] = flat[at : at + size].reshape(shape)
            at += size
        return found

    def tensors(self) -> dict[str, Floats]:
        """All that a checkpoint holds, views of it."""
        momentum = {f"optimizer.{name}": view for name, view in self.views(self.momentum).items()}
        return {**self.views(self.weights), **momentum}

    def step(self, x: Floats, y: NDArray[np.int64]) -> float:
        """Forward and backward: the gradient is left in `gradient`, both summed over the samples.

        Returns:
            The loss, summed.
        """
        weight, grad = self.views(self.weights), self.views(self.gradient)
        hidden = np.tanh(x @ weight["layer1.weight"] + weight["layer1.bias"])
        logits = hidden @ weight["layer2.weight"] + weight["layer2.bias"]
        logits -= logits.max(axis=1, keepdims=True)
        likely = np.exp(logits)
        likely /= likely.sum(axis=1, keepdims=True)
        rows = np.arange(len(y))
        loss = -float(np.log(likely[rows, y] + 1e-9).sum())
        likely[rows, y] -= 1.0
        grad["layer2.weight"][:] = hidden.T @ likely
        grad["layer2.bias"][:] = likely.sum(axis=0)
        back = (likely @ weight["layer2.weight"].T) * (1.0 - hidden * hidden)
        grad["layer1.weight"][:] = x.T @ back
        grad["layer1.bias"][:] = back.sum(axis=0)
        return loss

    def update(self, summed: Floats, count: float, factor: float = 1.0) -> None:
        """One step of the optimizer, from the gradient of all ranks; `factor` scales the rate."""
        self.momentum *= np.float32(_MOMENTUM)
        self.momentum += summed * np.float32(1.0 / count)
        self.weights -= np.float32(_RATE * factor) * self.momentum

    def digest(self) -> str:
        """Short digest of weights and optimizer: two runs that agree so far agree in it."""
        return hashlib.sha256(self.weights.tobytes() + self.momentum.tobytes()).hexdigest()[:16]
