"""What ringmaster.keras and ringmaster.tensorflow.keras have in common: collectives on values, models that are loaded."""

from typing import Any, Callable, Optional, Type

import numpy as np
import tensorflow as tf

from .. import _basics, _ops
from .._basics import Average
from ..compression import Compression as _NumpyCompression
from ..process_sets import ProcessSet, global_process_set
from .compression import Compression, Compressor
from .optimizer import DistributedOptimizer as _DistributedOptimizer
from .session import broadcast_global_variables as _broadcast_global_variables


def _value(value: Any) -> np.ndarray:
    """A number, array, tensor or variable as an array."""
    return np.asarray(value.numpy() if hasattr(value, "numpy") else value)


def allreduce(
    value: Any,
    name: Optional[str] = None,
    average: Optional[bool] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: Optional[int] = None,
    compression: Any = Compression.none,
) -> Any:
    """Reduces a value over all ranks, here and now.

    Args:
        value: number, array, or tensor of eager mode.
        name: the same on all ranks; counted when None.
        average: Horovod's older way to say op.
        prescale_factor, postscale_factor: multiplied in before and after.
        op: Average (default), Sum, Min, Max, Product or Adasum.
        compression: Compression.none or Compression.fp16.

    Returns:
        An array of value's shape.
    """
    array = _value(value)
    compressor = _NumpyCompression.fp16 if compression in (Compression.fp16, _NumpyCompression.fp16) else _NumpyCompression.none
    small, context = compressor.compress(array)
    operation = _basics.which_op(op, average)
    reduced = _ops.allreduce(small, None, name, operation, prescale_factor, postscale_factor)
    return compressor.decompress(reduced, context)


def allgather(value: Any, name: Optional[str] = None) -> Any:
    """Concatenates the ranks' values along the first dimension, here and now; see ringmaster.allgather."""
    return _ops.allgather(_value(value), name)


def broadcast(value: Any, root_rank: int, name: Optional[str] = None) -> Any:
    """The root's value, here and now; see ringmaster.broadcast."""
    return _ops.broadcast(_value(value), root_rank, name)


def reducescatter(value: Any, name: Optional[str] = None, op: int = Average) -> Any:
    """This rank's rows of the reduced value, here and now; see ringmaster.reducescatter."""
    return _ops.reducescatter(_value(value), name, op)


def broadcast_global_variables(root_rank: int) -> Any:
    """Sets all global variables of a TF1 graph to the root's values, in the session of Keras.

    Raises:
        RuntimeError: in eager mode.
    """
    operation = _broadcast_global_variables(root_rank)
    return tf.compat.v1.keras.backend.get_session().run(operation)


def keras_distributed_optimizer(
    optimizer: Any,
    name: Optional[str] = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Makes a Keras optimizer apply the gradients of all ranks; see ringmaster.tensorflow.DistributedOptimizer, which takes the same
    arguments in another order."""
    return _DistributedOptimizer(
        optimizer,
        name=name,
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )


def load_model_with(load: Callable[..., Any]) -> Callable[..., Any]:
    """`load_model` for the Keras whose loader this is."""

    def load_model(
        filepath: Any,
        custom_optimizers: Any = None,
        custom_objects: Any = None,
        compression: Type[Compressor] = Compression.none,
        legacy_opts: bool = False,
    ) -> Any:
        """Loads a model that was saved with or without a distributed optimizer; its optimizer is distributed.

        Args:
            filepath: what Keras's load_model takes.
            custom_optimizers: classes of optimizers that are not Keras's own.
            custom_objects: whatever else the model needs, by name.
            compression: of the optimizer's gradients.
            legacy_opts: taken for Horovod's sake: which optimizers they are is in the file.
        """
        objects = {cls.__name__: cls for cls in custom_optimizers or []}
        objects.update(custom_objects or {})
        model = load(filepath, custom_objects=objects or None)
        if getattr(model, "optimizer", None) is not None:
            keras_distributed_optimizer(model.optimizer, compression=compression)
        return model

    return load_model
