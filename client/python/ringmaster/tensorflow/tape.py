"""A gradient tape whose gradients are those of all ranks."""

import functools
from typing import Any, List, Optional, Tuple, Type

import tensorflow as tf

from ..process_sets import ProcessSet, global_process_set
from .collectives import tf_variable
from .compression import Compression, Compressor
from .gradients import Reduction
from .optimizer import layers_of


def _flat(structure: Any) -> List[Any]:
    return tf.nest.flatten(structure, expand_composites=False)


class _Methods:
    """What the tape of a class of our own has more than its base."""

    _ringmaster: Reduction

    def register_local_source(self, source: Any) -> None:
        """The gradients of this variable stay on this rank."""
        self._ringmaster.register_local(source)

    def get_local_and_global_gradients(self, gradients: Any, sources: Any) -> Tuple[List[Any], List[Any], List[Any], List[Any]]:
        """(local gradients, their sources, the gradients to be reduced, their sources)."""
        pairs = list(zip(_flat(gradients), _flat(sources)))
        local = [pair for pair in pairs if self._ringmaster.is_local(pair[1])]
        shared = [pair for pair in pairs if not self._ringmaster.is_local(pair[1])]
        return [g for g, _ in local], [s for _, s in local], [g for g, _ in shared], [s for _, s in shared]


@functools.lru_cache(maxsize=None)
def _distributed_class(base: type) -> type:
    def gradient(self: Any, target: Any, sources: Any, output_gradients: Any = None, use_generic_names: bool = False, **options: Any) -> Any:
        """As tf.GradientTape.gradient, reduced over all ranks. Every rank calls it with the same sources."""
        # Keras 3 has variables of its own, which a tape of TensorFlow 2.15 does not know.
        plain = tf.nest.map_structure(tf_variable, sources)
        gradients = base.gradient(self, target, plain, output_gradients, **options)  # type: ignore[attr-defined]
        reduced = self._ringmaster(_flat(gradients), _flat(sources))
        return tf.nest.pack_sequence_as(gradients, reduced, expand_composites=False)

    methods = {name: value for name, value in vars(_Methods).items() if not name.startswith("__")}
    return type(base.__name__, (base,), {**methods, "gradient": gradient, "__doc__": base.__doc__})


def _distribute(gradtape: tf.GradientTape, reduction: Reduction) -> Any:
    cls = _distributed_class(type(gradtape))
    tape = cls.__new__(cls)
    tape.__dict__.update(gradtape.__dict__)  # what it has recorded and what it was told are the same
    tape._ringmaster = reduction
    return tape


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
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Wraps a tf.GradientTape so that `gradient` gives the gradients of all ranks.

    Args:
        gradtape: the tape, before or after it has recorded.
        device_dense, device_sparse: taken for Horovod's sake.
        compression: Compression.none, Compression.fp16, or a Compressor.
        sparse_as_dense: IndexedSlices become dense tensors before they travel.
        op: Average (default), Sum, Min, Max, Product or Adasum.
        gradient_predivide_factor: splits the averaging: before the sum by this, after it by size / this.
        num_groups: into how many packed requests the gradients go; 0 and 1: one.
        groups: a number, as num_groups; or lists of variables, each of which is one request.
        process_set: whose ranks take part.
        scale_local_gradients: divide the gradients of variables that `register_local_source` has named by the number of ranks.

    Returns:
        A tape, of a subclass of its class.

    Raises:
        ValueError: an argument that cannot be.
    """
    return PartialDistributedGradientTape(
        gradtape,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        num_groups,
        groups,
        process_set,
        None,
        scale_local_gradients,
    )


def PartialDistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    op: Optional[int] = None,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """DistributedGradientTape for a model some layers of which every rank keeps to itself.

    Args:
        local_layers: a layer or several, whose gradients are not reduced.
        scale_local_gradients: divide their gradients by the number of ranks.

    The other arguments, what is returned and what is raised are those of DistributedGradientTape.
    """
    return _distribute(
        gradtape,
        Reduction(
            "DistributedGradientTape",
            None,
            compression,
            sparse_as_dense,
            op,
            gradient_predivide_factor,
            num_groups,
            groups,
            process_set,
            scale_local_gradients,
            layers_of(local_layers),
        ),
    )
