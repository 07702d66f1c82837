"""Which samples are whose, when ranks come and go in the middle of an epoch."""

import math
import random
from typing import Any, Dict, Iterator, List

import torch.utils.data

from ..mpi_ops import rank, size


class ElasticSampler(torch.utils.data.Sampler):
    """Shares the samples of a dataset out among the ranks, and those that are left of an epoch again after a loss of ranks.

    Give it to a TorchState; call `record_batch` after each batch, and `set_epoch` at the end of each epoch.

    Args:
        dataset: has a length, which does not change.
        shuffle: whether the order is a random one, another each epoch.
        seed: of that order; the same on all ranks.
    """

    def __init__(self, dataset: Any, shuffle: bool = True, seed: int = 0):
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self.epoch = 0
        self.processed_num = 0
        self.num_replicas = self.rank = self.num_samples = self.total_size = 0
        self.remaining_indices: List[int] = []
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """An epoch has ended: the next one has all samples again, in its own order. Call it at the end, not at the beginning, or
        an epoch that was interrupted would have its samples twice."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Every rank has done a batch of this size."""
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> Dict[str, int]:
        """Epoch, and how many of its samples are done."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: Dict[str, int]) -> None:
        """Goes on where another sampler was, among the ranks that there are now."""
        self.epoch, self.processed_num = state_dict["epoch"], state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Shares out what is left among the ranks that there are now."""
        self.num_replicas, self.rank = size(), rank()
        order = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(order)
        self.remaining_indices = order[self.processed_num :]
        self.num_samples = math.ceil(len(self.remaining_indices) / self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        indices = list(self.remaining_indices)
        while indices and len(indices) < self.total_size:  # every rank gets as many: some are there twice
            indices += indices[: self.total_size - len(indices)]
        return iter(indices[self.rank : self.total_size : self.num_replicas])

    def __len__(self) -> int:
        return self.num_samples
