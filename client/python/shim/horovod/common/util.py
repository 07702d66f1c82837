"""The questions of Horovod's common/util.py that scripts ask."""

from typing import Any, List, Sequence

from ringmaster import ccl_built, cuda_built, ddl_built, gloo_built, mpi_built, nccl_built, rocm_built  # noqa: F401


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether there is a module for this framework: "torch" and "tensorflow"."""
    return ext_base_name in ("torch", "tensorflow")


def check_extension(ext_name: str, ext_env_var: str = "", pkg_path: str = "", *args: Any) -> None:
    """Horovod raises ImportError here for a framework that it was not compiled for: nothing is compiled here."""


def num_rank_is_power_2(num_rank: int) -> bool:
    """Whether a number of ranks is a power of two."""
    return num_rank != 0 and num_rank & (num_rank - 1) == 0


def split_list(values: Sequence[Any], num_parts: int) -> List[List[Any]]:
    """A list in parts of nearly equal length, the longer ones first; none is empty."""
    length, more = divmod(len(values), num_parts)
    ends = [(i + 1) * length + min(i + 1, more) for i in range(num_parts)]
    begins = [0, *ends[:-1]]
    return [list(values[begin:end]) for begin, end in zip(begins, ends) if end > begin]
