"""A gradient tape whose gradients are those of all ranks."""

from typing import Any, List, Optional, Type

import tensorflow as tf

from .compression import Compression, Compressor
from .gradients import Reduction, make_reduction, refuse


class _DistributedGradientTape:
    """Wraps a tape: everything is the tape's own, but `gradient` reduces what it gives back."""

    def __init__(self, tape: tf.GradientTape, reduction: Reduction):
        self._tape = tape
        self._reduction = reduction

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tape, name)

    def __enter__(self) -> "_DistributedGradientTape":
        self._tape.__enter__()
        return self

    def __exit__(self, *details: Any) -> Optional[bool]:
        return self._tape.__exit__(*details)

    def gradient(self, target: Any, sources: Any, output_gradients: Any = None, **options: Any) -> Any:
        """As tf.GradientTape.gradient, reduced over all ranks. Every rank calls it with the same sources."""
        gradients = self._tape.gradient(target, sources, output_gradients, **options)
        flat: List[Any] = tf.nest.flatten(gradients, expand_composites=False)
        return tf.nest.pack_sequence_as(gradients, self._reduction(flat), expand_composites=False)


def DistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    op: Optional[int] = None,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Wraps a tf.GradientTape so that `gradient` gives the gradients of all ranks.

    Args:
        gradtape: the tape.
        device_dense, device_sparse, scale_local_gradients: taken for Horovod's sake.
        compression: Compression.none or Compression.fp16.
        sparse_as_dense: IndexedSlices become dense tensors before they travel.
        op: Average (default), Sum, Min, Max or Product.
        gradient_predivide_factor: splits the averaging: before the sum by this, after it by size / this.
        num_groups: into how many packed requests the gradients go; 0 and 1: one.
        groups: None.

    Returns:
        An object that is used as the tape is.
    """
    refuse(groups=(groups, None))
    reduction = make_reduction(
        "DistributedGradientTape", None, compression, sparse_as_dense, op, gradient_predivide_factor, num_groups
    )
    return _DistributedGradientTape(gradtape, reduction)
