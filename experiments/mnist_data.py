"""Digits as bits: MNIST in two binarisations, and scikit-learn's 8 × 8 digits as the small version."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from sklearn.datasets import load_digits
from torch import Tensor

from ctem.datasets import load_binarized_mnist, load_mnist

__all__ = ["Bits", "Images", "classifier_rows", "load_images", "shuffled"]


class Bits(NamedTuple):
    """One binarisation, rows (n, d) of 0 and 1 on the device."""

    train: Tensor
    valid: Tensor
    test: Tensor
    labels: Tensor  # of the test rows


class Images(NamedTuple):
    """Grey training images for the classifier, and the binarisations."""

    grey: Tensor  # (n, d), 0 … 1
    labels: Tensor
    bits: dict[str, Bits]


def _load_28(folder: str | None, device: str) -> Images:
    """MNIST, thresholded at half; and the fixed binarisation, whose test rows are MNIST's sorted by class."""
    digits, fixed = load_mnist(folder), load_binarized_mnist(folder)
    labels, test_labels = (torch.tensor(v, device=device) for v in (digits.train_labels, digits.test_labels))
    grey, test = (torch.tensor(v, device=device).float() / 255 for v in (digits.train, digits.test))
    ink = (grey >= 0.5).float()
    rows = [torch.tensor(v, device=device).float() for v in fixed]
    bits = {
        "threshold": Bits(ink[:-2000], ink[-2000:], (test >= 0.5).float(), test_labels),
        "fixed": Bits(rows[0], shuffled(rows[1])[:2000], rows[2], test_labels.sort().values),
    }
    return Images(grey, labels, bits)


def _load_8(device: str) -> Images:
    """scikit-learn's 1797 digits, thresholded at half, split at random into 1150, 147 and 500."""
    found = load_digits()
    order = torch.randperm(len(found.target), generator=torch.Generator().manual_seed(0))
    grey = torch.as_tensor(found.data)[order].float().to(device) / 16
    labels = torch.as_tensor(found.target)[order].to(device)
    ink = (grey >= 0.5).float()
    bits = Bits(ink[:1150], ink[1150:1297], ink[1297:], labels[1297:])
    return Images(grey[:1150], labels[:1150], {"threshold": bits, "fixed": bits})


def classifier_rows(grey: Tensor) -> Callable[[torch.Generator, Tensor], Tensor]:
    """Rows for the classifier: half of them thresholded at half, half drawn with the grey value as probability."""

    def rows(generator: torch.Generator, index: Tensor) -> Tensor:
        u = torch.rand(len(index), grey.shape[1] + 1, generator=generator, device=grey.device)
        half = torch.where(u[:, -1:] < 0.5, 0.5, u[:, :-1].clamp(1e-6))
        return (grey[index] >= half).float()

    return rows


def load_images(side: int, folder: str | None, device: str) -> Images:
    """The digits of 28 or 8 pixels a side."""
    return _load_28(folder, device) if side == 28 else _load_8(device)


def shuffled(x: Tensor, seed: int = 0) -> Tensor:
    """Rows in the same random order every time: the fixed binarisation is sorted by class."""
    return x[torch.randperm(len(x), generator=torch.Generator().manual_seed(seed)).to(x.device)]
