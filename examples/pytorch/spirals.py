"""A data set that needs no download: points on three spiral arms, to be told apart."""

import math

import torch
from torch.utils.data import TensorDataset

CLASSES = 3


def spirals(samples: int = 1536, noise: float = 0.15, seed: int = 1) -> TensorDataset:
    """Points (x, y) and the arm that each lies on. The same on all ranks.

    Args:
        samples: how many.
        noise: how far they lie off their arm.
        seed: of the points.
    """
    generator = torch.Generator().manual_seed(seed)
    arm = torch.arange(samples) % CLASSES
    along = torch.rand(samples, generator=generator)
    angle = 4 * along + 2 * math.pi / CLASSES * arm + noise * torch.randn(samples, generator=generator)
    points = torch.stack([along * torch.cos(angle), along * torch.sin(angle)], 1) * 2
    return TensorDataset(points, arm)


def network(width: int = 64) -> torch.nn.Module:
    """A small classifier of such points."""
    return torch.nn.Sequential(
        torch.nn.Linear(2, width), torch.nn.ReLU(), torch.nn.Dropout(0.05), torch.nn.Linear(width, width), torch.nn.ReLU(),
        torch.nn.Linear(width, CLASSES),
    )  # fmt: skip
