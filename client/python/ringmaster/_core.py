"""The C library by ctypes: finding it, its signatures, its errors."""

import ctypes
import os
import pathlib
from typing import Callable, List, Optional

LIBRARY = "libringmaster.so"
ABI_VERSION = 5  # RM_ABI_VERSION

# enum rm_error of ringmaster.h
OK, NOT_INITIALIZED, INVALID, MISMATCH, PEER_LOST, NO_MEMORY, IO, TIMEOUT, NOT_FOUND, EXISTS, LEFT = range(0, -11, -1)

DONE_FN = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)


class RingmasterError(RuntimeError):
    """A call into the library failed. `code` is the negative number of `enum rm_error`.

    In the Horovod API this is `HorovodInternalError`.
    """

    def __init__(self, message: str, code: int = IO):
        super().__init__(message)
        self.code = code


class PeerLostError(RingmasterError):
    """A rank, or this process's sidecar, is gone. Exit with a non-zero code, or wait to be ended: the sidecars start every
    rank again from the last checkpoint."""

    def __init__(self, message: str, code: int = PEER_LOST):
        super().__init__(message, code)


class MismatchError(RingmasterError):
    """Ranks disagree on the shape, dtype, operation or root of a tensor of one name."""

    def __init__(self, message: str, code: int = MISMATCH):
        super().__init__(message, code)


class LeftError(PeerLostError):
    """A rank that a collective waits for has ended its training process with code 0."""

    def __init__(self, message: str, code: int = LEFT):
        super().__init__(message, code)


class InvalidError(RingmasterError, ValueError):
    """A call that cannot be right, whatever the other ranks do: it is a ValueError too."""

    def __init__(self, message: str, code: int = INVALID):
        super().__init__(message, code)


_ERRORS = {PEER_LOST: PeerLostError, MISMATCH: MismatchError, LEFT: LeftError, INVALID: InvalidError}


def _candidates() -> List[pathlib.Path]:
    here = pathlib.Path(__file__).resolve().parent
    places = []
    if os.environ.get("RINGMASTER_LIBRARY_DIR"):
        places.append(pathlib.Path(os.environ["RINGMASTER_LIBRARY_DIR"]))
    beside = [
        (1, "lib"),  # where the sidecar puts it, and build/client
        (3, "lib/ringmaster"),  # as installed: PREFIX/share/ringmaster/python, PREFIX/lib/ringmaster
        (2, "build/client/lib"),  # a checkout
    ]
    above = list(here.parents)  # in a pod the package is /ringmaster/python/ringmaster: three levels, no more
    places.append(here)
    places += [above[levels] / name for levels, name in beside if levels < len(above)]
    return places


def find(name: str = LIBRARY) -> str:
    """The path of one of our shared objects, or its bare name when the dynamic loader has to find it.

    Searched: `RINGMASTER_LIBRARY_DIR`, the package's directory, `../lib` beside it, the loader's own path.
    """
    for place in _candidates():
        path = place / name
        if path.is_file():
            return str(path)
    return name


_VOID, _INT, _I64, _U64, _F64, _TEXT = (
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.c_int64,
    ctypes.c_uint64,
    ctypes.c_double,
    ctypes.c_char_p,
)
_HANDLE = ctypes.POINTER(_U64)
_INTS = ctypes.POINTER(_INT)


class Tensor(ctypes.Structure):
    """struct rm_tensor"""

    _fields_ = [
        ("input", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("ndim", ctypes.c_int),
        ("dtype", ctypes.c_int),
    ]


class Collective(ctypes.Structure):
    """struct rm_collective"""

    _fields_ = [
        ("struct_bytes", ctypes.c_uint32),
        ("kind", ctypes.c_int),
        ("name", ctypes.c_char_p),
        ("process_set", ctypes.c_int),
        ("op", ctypes.c_int),
        ("prescale", ctypes.c_double),
        ("postscale", ctypes.c_double),
        ("root", ctypes.c_int),
        ("tensor_count", ctypes.c_size_t),
        ("tensors", ctypes.POINTER(Tensor)),
        ("splits", ctypes.POINTER(ctypes.c_int64)),
        ("done", DONE_FN),
        ("ctx", ctypes.c_void_p),
        ("memory", ctypes.c_int),
        ("stream", ctypes.c_void_p),
        ("wire", ctypes.c_int),
    ]


_ASYNC = [DONE_FN, _VOID, _HANDLE]

_SIGNATURES = {
    "rm_abi_version": (_INT, []),
    "rm_version": (_TEXT, []),
    "rm_error_text": (_TEXT, []),
    "rm_init": (_INT, [_TEXT]),
    "rm_shutdown": (_INT, []),
    "rm_is_initialized": (_INT, []),
    "rm_rank": (_INT, []),
    "rm_size": (_INT, []),
    "rm_local_rank": (_INT, []),
    "rm_local_size": (_INT, []),
    "rm_allreduce": (_INT, [_TEXT, _VOID, _VOID, _U64, _INT, _INT, _F64, _F64, *_ASYNC]),
    "rm_allreduce_group": (
        _INT,
        [_TEXT, ctypes.c_size_t, ctypes.POINTER(_VOID), ctypes.POINTER(_VOID), _HANDLE, _INT, _INT, _F64, _F64, *_ASYNC],
    ),
    "rm_broadcast": (_INT, [_TEXT, _VOID, _VOID, _U64, _INT, _INT, *_ASYNC]),
    "rm_allgather": (_INT, [_TEXT, _VOID, _U64, _U64, _INT, *_ASYNC]),
    "rm_result": (_INT, [_U64, ctypes.POINTER(_VOID), _HANDLE]),
    "rm_barrier": (_INT, [_TEXT]),
    "rm_submit": (_INT, [ctypes.POINTER(Collective), _HANDLE]),
    "rm_output": (_INT, [_U64, ctypes.c_size_t, ctypes.POINTER(_VOID), ctypes.POINTER(_I64)]),
    "rm_received_splits": (_INT, [_U64, ctypes.POINTER(_I64), ctypes.c_size_t]),
    "rm_join": (_INT, [_INTS]),
    "rm_joined": (_INT, [_U64]),
    "rm_process_set_add": (_INT, [_INTS, ctypes.c_size_t]),
    "rm_process_set_remove": (_INT, [_INT]),
    "rm_process_set_size": (_INT, [_INT]),
    "rm_process_set_rank": (_INT, [_INT]),
    "rm_process_set_included": (_INT, [_INT]),
    "rm_process_set_ranks": (_INT, [_INT, _INTS, ctypes.c_size_t]),
    "rm_process_sets": (_INT, [_INTS, ctypes.c_size_t]),
    "rm_poll": (_INT, [_U64]),
    "rm_wait": (_INT, [_U64, _I64]),
    "rm_release": (None, [_U64]),
    "rm_alloc": (_VOID, [ctypes.c_size_t]),
    "rm_free": (None, [_VOID]),
    "rm_timeline_start": (_INT, [_TEXT, _INT]),
    "rm_timeline_stop": (_INT, []),
    "rm_hosts_listen": (_INT, []),
    "rm_hosts_updated": (_INT, []),
    "rm_next_round": (_INT, []),
    "rm_report": (_INT, [_TEXT]),
    "rm_progress": (None, []),
    "rm_resume_step": (_I64, []),
    "rm_checkpoint_begin": (_INT, [_I64, _U64, ctypes.POINTER(_VOID)]),
    "rm_checkpoint_stage": (_INT, [_I64, _U64]),
    "rm_checkpoint_wanted": (_INT, []),
    "rm_checkpoint_wait": (_INT, [_I64, ctypes.POINTER(_I64)]),
    "rm_checkpoint_restore": (_INT, [ctypes.POINTER(_VOID), _HANDLE, ctypes.POINTER(_I64), ctypes.POINTER(_INT)]),
    "rm_checkpoint_restore_image": (_INT, [_INT, ctypes.POINTER(_VOID), _HANDLE, ctypes.POINTER(_I64), ctypes.POINTER(_INT)]),
    "rm_checkpoint_restore_done": (None, []),
}

_library: Optional[ctypes.CDLL] = None


def library() -> ctypes.CDLL:
    """The loaded library.

    Raises:
        ImportError: it is nowhere to be found.
    """
    global _library
    if _library is None:
        path = find()
        try:
            # Global, so that libringmaster_tf.so is bound to this copy and shares its state.
            loaded = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            searched = ", ".join(str(place) for place in _candidates())
            raise ImportError(
                f"{LIBRARY} cannot be loaded ({error}); searched {searched} and the loader's path. "
                "`ringmaster run` and the operator set RINGMASTER_LIBRARY_DIR; in a checkout run `make client`."
            ) from error
        abi = loaded.rm_abi_version() if hasattr(loaded, "rm_abi_version") else 1
        if abi < ABI_VERSION:
            raise ImportError(f"{path} is of another release than this package: it has ABI {abi}, needed is {ABI_VERSION}")
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(loaded, name)
            function.restype = result
            function.argtypes = arguments
        _library = loaded
    return _library


def error(code: int) -> RingmasterError:
    """The exception for a failed call of the calling thread."""
    text = (library().rm_error_text() or b"").decode(errors="replace")
    kind: Callable[..., RingmasterError] = _ERRORS.get(code, RingmasterError)
    return kind(text or f"error {code}", code)


def check(code: int) -> int:
    """Raises when code is negative, else returns it."""
    if code < 0:
        raise error(code)
    return code
