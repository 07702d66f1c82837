"""`run`: a function on several ranks of this machine, as `horovod.run`.

    def train(steps):
        import ringmaster.torch as rm
        rm.init()
        ...
        return rm.rank()

    assert run(train, args=(100,), np=2) == [0, 1]
"""

import os
import pathlib
import pickle
import shutil
import subprocess
import sys
import tempfile
from typing import Any, Callable, Dict, List, Optional

_PROGRAM = """
import os, pathlib, pickle, sys
where = pathlib.Path(sys.argv[1])
function, args, kwargs = pickle.loads((where / "function").read_bytes())
result = function(*args, **kwargs)
rank = os.environ["RINGMASTER_RANK"]
try:
    import cloudpickle as pickler
except ImportError:
    pickler = pickle
(where / f"{rank}.new").write_bytes(pickler.dumps(result))
(where / f"{rank}.new").rename(where / f"result-{rank}")
"""


def _command() -> str:
    beside = pathlib.Path(__file__).resolve().parents[1]
    places = [os.environ.get("RINGMASTER_COMMAND", ""), *(str(beside.parents[n] / "bin/ringmaster") for n in range(min(3, len(beside.parents))))]
    for place in places:
        if place and os.access(place, os.X_OK):
            return place
    found = shutil.which("ringmaster")
    if found is None:
        raise FileNotFoundError("the command `ringmaster` is not in PATH; install it, or name it in RINGMASTER_COMMAND")
    return found


def _dump(function: Callable[..., Any], args: Any, kwargs: Any) -> bytes:
    try:
        import cloudpickle
    except ImportError:
        if getattr(function, "__module__", "") == "__main__":
            raise ImportError("a function of the main program needs the cloudpickle package to get to the ranks") from None
        return pickle.dumps((function, args, kwargs))
    return cloudpickle.dumps((function, args, kwargs))


def run(
    func: Callable[..., Any],
    args: Any = (),
    kwargs: Optional[Dict[str, Any]] = None,
    num_proc: Optional[int] = None,
    min_num_proc: Optional[int] = None,
    max_num_proc: Optional[int] = None,
    slots: Optional[int] = None,
    reset_limit: Optional[int] = None,
    cooldown_range: Any = None,
    hosts: Optional[str] = None,
    hostfile: Optional[str] = None,
    host_discovery_script: Optional[str] = None,
    start_timeout: Optional[int] = None,
    ssh_port: Optional[int] = None,
    ssh_identity_file: Optional[str] = None,
    disable_cache: Optional[bool] = None,
    output_filename: Optional[str] = None,
    verbose: Optional[bool] = None,
    use_gloo: Optional[bool] = None,
    use_mpi: Optional[bool] = None,
    mpi_args: Optional[str] = None,
    network_interface: Optional[str] = None,
    executable: Optional[str] = None,
    network_interfaces: Optional[str] = None,
    np: Optional[int] = None,
    min_np: Optional[int] = None,
    max_np: Optional[int] = None,
    env: Optional[Dict[str, str]] = None,
) -> List[Any]:
    """Runs a function on `num_proc` ranks of this machine, by `ringmaster run`.

    Args:
        func: what every rank calls; it calls `init` itself. Needs the cloudpickle package when it is of the main program.
        args, kwargs: what it is given; they and the results travel by pickle.
        num_proc, np: how many ranks; 1.
        executable: the Python to run; this one.
        verbose: whether the ranks' output is shown.
        env: variables to add to the environment.
        disable_cache, start_timeout, use_gloo, network_interface(s), ssh_port, ssh_identity_file: taken for Horovod's sake: one machine
            needs none of them.
        output_filename: the job directory to make, with the ranks' logs in it.

    Returns:
        What the ranks returned, in rank order.

    Raises:
        ValueError: what a run on one machine cannot have: other hosts, MPI, or a number of ranks that changes.
        RuntimeError: a rank failed; the text has the end of what the job said.
    """
    asked = {
        "hostfile": hostfile, "host_discovery_script": host_discovery_script, "use_mpi": use_mpi, "mpi_args": mpi_args,
        "min_num_proc": min_num_proc or min_np, "max_num_proc": max_num_proc or max_np, "reset_limit": reset_limit,
        "slots": slots, "cooldown_range": cooldown_range,
    }  # fmt: skip
    refused = [name for name, value in asked.items() if value]
    if hosts and any(host.split(":")[0] not in ("localhost", "127.0.0.1") for host in hosts.split(",")):
        refused.append("hosts")
    if refused:
        raise ValueError(f"run: {', '.join(refused)}: the ranks run on this machine, and their number does not change; see `ringmaster run` and TrainingJob")
    ranks = num_proc or np or 1
    with tempfile.TemporaryDirectory(prefix="ringmaster-run-") as where:
        pathlib.Path(where, "function").write_bytes(_dump(func, tuple(args), dict(kwargs or {})))
        job_dir = output_filename or os.path.join(where, "job")
        command = [_command(), "run", "-np", str(ranks), "--job-dir", job_dir, "--", executable or sys.executable, "-c", _PROGRAM, where]
        done = subprocess.run(command, env={**os.environ, **(env or {})}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        text = done.stdout.decode(errors="replace")
        if verbose:
            print(text, end="", flush=True)
        if done.returncode != 0:
            raise RuntimeError(f"run: the job ended with exit code {done.returncode}:\n{text[-4000:]}")
        return [pickle.loads(pathlib.Path(where, f"result-{rank}").read_bytes()) for rank in range(ranks)]
