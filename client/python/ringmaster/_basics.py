"""init, rank, size and what else is asked of the process; names and operations that every layer shares."""

import atexit
import json
import math
import numbers
import os
import sys
import threading
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

from . import _core
from ._submit import DTYPES
from .process_sets import forget_process_sets, init_process_sets


class ReduceOp(int):
    """How values of the ranks become one. `Average` and the others are the instances."""

    def __new__(cls, value: int, name: str, native: int) -> "ReduceOp":
        self = super().__new__(cls, value)
        self.name = name
        self.native = native  # enum rm_op
        return self

    def __repr__(self) -> str:
        return f"ringmaster.{self.name}"

    def __reduce__(self) -> Tuple[type, Tuple[int, str, int]]:
        return (ReduceOp, (int(self), self.name, self.native))


# The numbers are Horovod's; the last figure is enum rm_op.
Average = ReduceOp(0, "Average", 2)
Sum = ReduceOp(1, "Sum", 1)
Adasum = ReduceOp(2, "Adasum", 6)
Min = ReduceOp(3, "Min", 3)
Max = ReduceOp(4, "Max", 4)
Product = ReduceOp(5, "Product", 5)
OPS = {int(op): op for op in (Average, Sum, Adasum, Min, Max, Product)}

_counters: Dict[Tuple[str, int], int] = {}
_counters_lock = threading.Lock()
_registered_exit = False
_process_sets: Any = None  # as `init` got them


def _framework() -> bytes:
    torch = sys.modules.get("torch")
    if torch is not None and "ringmaster.torch" in sys.modules:
        return f"torch {getattr(torch, '__version__', '')}".encode()[:31]
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None:
        return f"tensorflow {getattr(tensorflow, '__version__', '')}".encode()[:31]
    return f"numpy {np.__version__}".encode()[:31]


def init(comm: Optional[Sequence[int]] = None, process_sets: Any = None) -> None:
    """Connects this process to its sidecar. Call it once, before anything else; calling it again does nothing.

    Without a sidecar (`RINGMASTER_SOCKET` is not set) this process is a world of its own: rank 0 of 1, and every collective
    gives back what it was given.

    Args:
        comm: None, or all ranks in order. A world of fewer ranks is made by starting fewer.
        process_sets: None; a list of ProcessSet, which are then registered; or "dynamic": add_process_set may be called later.

    Raises:
        ValueError: comm or process_sets that cannot be.
        RingmasterError: the sidecar cannot be reached or refuses this process.
    """
    global _registered_exit, _process_sets
    lib = _core.library()
    before = bool(lib.rm_is_initialized())
    _core.check(lib.rm_init(_framework()))
    if comm is not None and not (isinstance(comm, (list, tuple, range)) and list(comm) in ([], list(range(lib.rm_size())))):
        if not before:
            lib.rm_shutdown()
        raise ValueError(f"comm={comm!r} is not supported: only None, or all ranks in order; use process sets for some of them")
    if not _registered_exit:
        atexit.register(shutdown)
        _registered_exit = True
    if not before or isinstance(process_sets, str):
        _process_sets = process_sets
        init_process_sets(process_sets)


def initial_process_sets() -> Any:
    """What the last `init` was given: a round that follows begins with the same sets."""
    return _process_sets


def shutdown() -> None:
    """Leaves the sidecar; what was reported is sent first, what is in flight ends with an error. `init` may follow."""
    with _counters_lock:
        _counters.clear()
    forget_process_sets()
    _core.library().rm_shutdown()


def is_initialized() -> bool:
    """Whether `init` went well in this process. False in a forked child of the one that called it."""
    return bool(_core.library().rm_is_initialized())


def _known(value: int) -> int:
    if value < 0:
        raise ValueError("Ringmaster has not been initialized; use ringmaster.init().")
    return value


def rank() -> int:
    """This process's rank, 0..size-1. Raises ValueError before `init`."""
    return _known(_core.library().rm_rank())


def size() -> int:
    """The number of ranks. Raises ValueError before `init`."""
    return _known(_core.library().rm_size())


def local_rank() -> int:
    """The rank among those of this pod or machine. Raises ValueError before `init`."""
    return _known(_core.library().rm_local_rank())


def local_size() -> int:
    """The number of ranks of this pod or machine. Raises ValueError before `init`."""
    return _known(_core.library().rm_local_size())


def cross_rank() -> int:
    """The index of this pod among those that have a rank with our local rank. Raises ValueError before `init`."""
    return rank() // local_size()


def cross_size() -> int:
    """The number of pods that have a rank with our local rank. Raises ValueError before `init`."""
    return (size() + local_size() - 1) // local_size()


def is_homogeneous() -> bool:
    """Whether every pod has the same number of ranks."""
    return size() % local_size() == 0


def mpi_threads_supported() -> bool:
    """Raises ValueError: there is no MPI here."""
    raise ValueError("Horovod MPI is not enabled; Ringmaster does not use MPI.")


def mpi_enabled() -> bool:
    """False: there is no MPI here."""
    return False


def mpi_built(verbose: bool = False) -> bool:
    """False: there is no MPI here."""
    return False


def gloo_enabled() -> bool:
    """True: scripts and tests that ask for Horovod's transport over TCP without MPI find ours in its place."""
    return True


def gloo_built(verbose: bool = False) -> bool:
    """True: see gloo_enabled."""
    return True


def nccl_built(verbose: bool = False) -> int:
    """NCCL's version code; 0: collectives go through host memory."""
    return 0


def ddl_built(verbose: bool = False) -> bool:
    """False."""
    return False


def ccl_built(verbose: bool = False) -> bool:
    """False."""
    return False


def cuda_built(verbose: bool = False) -> bool:
    """False: collectives go through host memory."""
    return False


def rocm_built(verbose: bool = False) -> bool:
    """False."""
    return False


# ---- names and operations ----------------------------------------------------------------------------------------------


def auto_name(kind: str, name: Optional[str], process_set: int = 0) -> str:
    """`allreduce.<name>`, or `allreduce.noname.<n>` counted per process set: the same on its ranks if they make the same calls."""
    if name is not None:
        return f"{kind}.{name}"
    with _counters_lock:
        number = _counters.get((kind, process_set), 0)
        _counters[kind, process_set] = number + 1
    return f"{kind}.noname.{number}"


def which_op(op: Optional[int], average: Optional[bool]) -> ReduceOp:
    """The operation that `op` or Horovod's older `average` ask for; Average when neither does.

    Raises:
        ValueError: both are given, or op is none of ours.
    """
    if op is not None:
        if average is not None:
            raise ValueError("The op parameter supersedes average. Please provide only one of them.")
        if int(op) not in OPS:
            raise ValueError(f"op={op!r} is not supported; use Average, Sum, Adasum, Min, Max or Product")
        return OPS[int(op)]
    return Sum if average is False else Average


def dtype_code(dtype: Any) -> int:
    """enum rm_dtype of a numpy dtype.

    Raises:
        ValueError: the library has no such type.
    """
    name = np.dtype(dtype).name
    if name not in DTYPES:
        raise ValueError(f"dtype {name} is not supported; supported are {', '.join(DTYPES)}")
    return DTYPES[name]


# ---- progress ----------------------------------------------------------------------------------------------------------


def _json_value(value: Any) -> Union[str, bool, None, int, float]:
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, numbers.Integral):
        return int(value)
    number = float(value)
    return number if math.isfinite(number) else str(number)


def report(
    step: Optional[int] = None,
    total_steps: Optional[int] = None,
    loss: Optional[float] = None,
    step_ms: Optional[float] = None,
    metrics: Optional[Mapping[str, Any]] = None,
) -> None:
    """Tells the job how training goes: for its status, the live view and the report. Cheap; what comes faster than ten times a
    second is merged.

    Args:
        step: the number of training steps done.
        total_steps: how many there will be.
        loss: of the last step; one that is not finite is shown among the metrics.
        step_ms: how long the last step took.
        metrics: up to 32 numbers or short texts by name.

    Raises:
        RingmasterError: a text that is too long, or too many metrics.
    """
    numbers_given = {"step": step, "total_steps": total_steps, "loss": loss, "step_ms": step_ms}
    message: Dict[str, Any] = {}
    texts = {key: _json_value(value) for key, value in (metrics or {}).items()}
    for key, value in numbers_given.items():
        if value is None:
            continue
        plain = _json_value(value)
        if isinstance(plain, str):
            texts[key] = plain
        else:
            message[key] = plain
    if texts:
        message["metrics"] = texts
    if message:
        _core.check(_core.library().rm_report(json.dumps(message).encode()))


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Begins to record what the ring does, as a Chrome trace, into a file of this rank's machine.

    Args:
        file_path: the file; it is written by the sidecar.
        mark_cycles: kept for Horovod's sake: there are no cycles here.

    Raises:
        ValueError: not initialized.
        RingmasterError: the path is too long, or nothing can record.
    """
    _known(_core.library().rm_rank())
    _core.check(_core.library().rm_timeline_start(str(file_path).encode(), int(bool(mark_cycles))))


def stop_timeline() -> None:
    """Ends the record and closes its file. Raises ValueError when not initialized."""
    _known(_core.library().rm_rank())
    _core.check(_core.library().rm_timeline_stop())


def progress() -> None:
    """One training step went by: what hang detection looks at."""
    _core.library().rm_progress()


def environment_number(name: str) -> Optional[float]:
    """A positive number of the job's environment, None when it is not set or 0."""
    text = os.environ.get(name, "")
    try:
        value = float(text) if text else 0.0
    except ValueError:
        raise ValueError(f"{name}={text!r} is not a number") from None
    return value if value > 0 else None
