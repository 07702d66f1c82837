"""Process sets: some of the ranks, which do collectives among themselves."""

import ctypes
import os
from typing import Any, Iterable, List, Optional, Sequence, Union

from . import _core

# What Horovod's C entry points return for these errors.
ERROR_INIT, ERROR_DYNAMIC, ERROR_UNKNOWN_SET, ERROR_FOREIGN_SET, ERROR_SHUTDOWN, ERROR_EXISTING_SET = range(-1, -7, -1)


class ProcessSet:
    """A set of ranks. Give it to `init` or `add_process_set`, which set its number; then to collectives.

    `process_set_id` is its number, the same on all ranks, None before it is registered and after it is removed; `ranks` are its
    ranks in ascending order.
    """

    process_set_id: Optional[int] = None
    ranks: Optional[List[int]] = None
    mpi_comm = None

    def __init__(self, ranks_or_comm: Sequence[int]):
        try:
            ranks = sorted(ranks_or_comm)
        except TypeError:
            raise ValueError("ProcessSet should be initialized with a list of process ranks; there is no MPI here") from None
        if any(isinstance(rank, bool) or not hasattr(rank, "__index__") for rank in ranks):
            raise ValueError(f"ProcessSet should be initialized with a list of process ranks, not {ranks_or_comm!r}")
        self.ranks = [int(rank) for rank in ranks]

    def _invalidate(self) -> None:
        self.process_set_id = None

    def size(self) -> Optional[int]:
        """How many ranks it has, None when it is not registered."""
        if self.process_set_id is None:
            return None
        return _core.check(_core.library().rm_process_set_size(self.process_set_id))

    def rank(self) -> Optional[int]:
        """This process's place in it, None when it is not registered. (A root_rank is a rank of the job all the same.)

        Raises:
            ValueError: this process is not included.
        """
        if self.process_set_id is None:
            return None
        return _core.check(_core.library().rm_process_set_rank(self.process_set_id))

    def included(self) -> Optional[bool]:
        """Whether this process is one of it, None when its ranks are not known."""
        if self.ranks is None:
            return None
        rank = _core.library().rm_rank()
        if rank < 0:
            raise ValueError("Ringmaster has not been initialized; use ringmaster.init().")
        return rank in self.ranks

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm={self.mpi_comm})"

    __repr__ = __str__


global_process_set = ProcessSet([])
global_process_set.process_set_id = 0

_registered: List[ProcessSet] = []


def set_number(process_set: Any) -> int:
    """The number that collectives take.

    Raises:
        ValueError: the set is not registered.
    """
    if process_set is None:
        return 0
    number = process_set.process_set_id
    if number is None:
        raise ValueError(f"{process_set} is not registered: give it to init() or add_process_set() first")
    return number


def _add(ranks: Iterable[int]) -> Optional[int]:
    """The number of a fresh set, None when there is one of these ranks already."""
    listed = list(ranks)
    code = _core.library().rm_process_set_add((ctypes.c_int * len(listed))(*listed), len(listed))
    if code == _core.EXISTS:
        return None
    if code == _core.NOT_INITIALIZED:
        raise ValueError("Ringmaster has not been initialized; use ringmaster.init().")
    return _core.check(code)


def _need_dynamic(what: str) -> None:
    if not any(os.environ.get(name, "") not in ("", "0") for name in ("HOROVOD_DYNAMIC_PROCESS_SETS", "RINGMASTER_DYNAMIC_PROCESS_SETS")):
        raise ValueError(
            f'Set HOROVOD_DYNAMIC_PROCESS_SETS=1 or call init(process_sets="dynamic") to allow {what} process sets after initialization.'
        )


def _registered_now(process_set: ProcessSet, number: int) -> None:
    process_set.process_set_id = number
    _registered.append(process_set)


def add_process_set(process_set: Union[ProcessSet, Sequence[int]]) -> ProcessSet:
    """Adds a process set; all ranks have to call it with the same ranks, those outside of it too.

    Needs HOROVOD_DYNAMIC_PROCESS_SETS=1 or init(process_sets="dynamic"), as in Horovod.

    Returns:
        The set, registered.

    Raises:
        ValueError: not dynamic, no such rank, or there is a set of these ranks already.
        MismatchError: ranks disagree on the set.
    """
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    if not _core.library().rm_is_initialized():
        raise ValueError("Ringmaster has not been initialized; use ringmaster.init().")
    _need_dynamic("adding")
    number = _add(process_set.ranks or [])
    if number is None:
        raise ValueError(f"Attempted to add a duplicate process set: {process_set}")
    _registered_now(process_set, number)
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Removes a process set; all ranks have to call it. What waits in it ends with an error.

    Returns:
        Whether there was one to remove: not the global set, nor one that is not registered.

    Raises:
        ValueError: not dynamic.
    """
    number = process_set.process_set_id
    if number is None or number == 0:
        return False
    if not _core.library().rm_is_initialized():
        raise ValueError("Ringmaster has not been initialized; use ringmaster.init().")
    _need_dynamic("removing")
    process_set._invalidate()
    code = _core.library().rm_process_set_remove(number)
    if code == _core.NOT_FOUND:
        return False
    _core.check(code)
    return True


def get_process_set_ids_and_ranks() -> dict:
    """{number: ranks} of all sets that are registered, the global one included."""
    lib = _core.library()
    count = _core.check(lib.rm_process_sets(None, 0))
    numbers = (ctypes.c_int * count)()
    count = min(count, _core.check(lib.rm_process_sets(numbers, count)))
    found = {}
    for number in numbers[:count]:
        size = _core.check(lib.rm_process_set_size(number))
        ranks = (ctypes.c_int * size)()
        _core.check(lib.rm_process_set_ranks(number, ranks, size))
        found[number] = list(ranks)
    return found


def init_process_sets(process_sets: Any) -> None:
    """What `init` does with its argument of this name.

    Raises:
        ValueError: a set is there twice, or is not of ranks of this job.
    """
    global_process_set.ranks = list(range(_core.library().rm_size()))
    if process_sets is None:
        return
    if isinstance(process_sets, str):
        if process_sets.lower() != "dynamic":
            raise ValueError(f'process_sets={process_sets!r}: a list of ProcessSet, or "dynamic"')
        os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1"
        return
    for index, process_set in enumerate(list(process_sets)):
        if not isinstance(process_set, ProcessSet):
            process_set = ProcessSet(process_set)
        number = _add(process_set.ranks or [])
        if number is None:
            raise ValueError(f"process_sets entry number {index} is a duplicate: {process_set}")
        _registered_now(process_set, number)


def forget_process_sets() -> None:
    """The numbers end with `shutdown`."""
    for process_set in _registered:
        process_set._invalidate()
    _registered.clear()
