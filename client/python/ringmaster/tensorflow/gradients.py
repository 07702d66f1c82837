"""Reducing gradients: what the optimizers and the tape have in common."""

from typing import Any, List, NamedTuple, Optional, Sequence, Type

import tensorflow as tf

from .. import _basics
from .._basics import Average, ReduceOp, Sum
from .collectives import grouped_allreduce
from .compression import Compression, Compressor


class Reduction(NamedTuple):
    """How gradients are reduced."""

    name: str
    op: ReduceOp = Average
    compression: Type[Compressor] = Compression.none
    sparse_as_dense: bool = False
    prescale: float = 1.0
    postscale: float = 1.0
    groups: int = 1

    def __call__(self, gradients: Sequence[Any]) -> List[Any]:
        """The gradients reduced over all ranks, in their order; None stays None. In a world of one they stay as they are."""
        if _basics.size() == 1:
            return list(gradients)
        reduced = list(gradients)
        present = [index for index, gradient in enumerate(reduced) if gradient is not None]
        if self.sparse_as_dense:
            for index in present:
                reduced[index] = tf.convert_to_tensor(reduced[index])
        count = max(1, min(self.groups, len(present)))
        for group in range(count):
            indices = present[len(present) * group // count : len(present) * (group + 1) // count]
            results = grouped_allreduce(
                [reduced[index] for index in indices],
                op=self.op,
                compression=self.compression,
                prescale_factor=self.prescale,
                postscale_factor=self.postscale,
                ignore_name_scope=True,
                name=self.name if count == 1 else f"{self.name}.{group}",
            )
            for index, result in zip(indices, results):
                reduced[index] = result
        return reduced


def make_reduction(
    kind: str,
    name: Optional[str],
    compression: Type[Compressor],
    sparse_as_dense: bool,
    op: Optional[int],
    gradient_predivide_factor: float,
    num_groups: int,
) -> Reduction:
    """Checks the arguments that optimizers and tape share.

    Raises:
        ValueError: a predivide factor with another op than Average, or a negative number of groups.
    """
    operation = _basics.which_op(op, None)
    prescale = postscale = 1.0
    if gradient_predivide_factor != 1.0:
        if operation != Average:
            raise ValueError("gradient_predivide_factor not supported with op != Average")
        operation = Sum
        prescale, postscale = 1.0 / gradient_predivide_factor, gradient_predivide_factor / _basics.size()
    if num_groups < 0:
        raise ValueError("num_groups must be a non-negative integer")
    return Reduction(
        name=_basics.auto_name(kind, name),
        op=operation,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        prescale=prescale,
        postscale=postscale,
        groups=max(1, num_groups),
    )


def refuse(**unsupported: Any) -> None:
    """Raises NotImplementedError when one of Horovod's arguments asks for what does not exist here."""
    for name, (value, default) in unsupported.items():
        if value != default:
            raise NotImplementedError(f"{name}={value!r} is not supported; leave it at {default!r}")
