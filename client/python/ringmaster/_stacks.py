"""The stacks of this process's threads, for a job that hangs: written when the launcher asks (`lib/wire/local.h`, LOCAL_STACKS_SIGNAL).

faulthandler's handler is C and needs no interpreter lock: it answers from a process that is stuck inside a library, too.
"""

import faulthandler
import os
import signal

SIGNAL = 50
FILE = "ringmaster-stacks"

_file = None


def register() -> None:
    """Does nothing without a sidecar, a second time, or when somebody else uses the signal."""
    global _file
    if _file is not None or "RINGMASTER_SOCKET" not in os.environ or signal.getsignal(SIGNAL) is not signal.SIG_DFL:
        return
    try:
        _file = open(os.memfd_create(FILE), "wb", buffering=0)  # noqa: SIM115 -- for as long as the process lives
        faulthandler.register(SIGNAL, file=_file, all_threads=True)
    except (OSError, ValueError, RuntimeError):
        _file = None
