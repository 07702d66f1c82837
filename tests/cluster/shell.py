"""Running programs, waiting for things, and remembering what was started, for the test cluster's scripts."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from typing import Callable, Dict, Optional, Sequence


class ClusterError(Exception):
    """The cluster cannot be brought up or taken down; the text says what to do."""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def run(command: Sequence[str], *, env: Optional[Dict[str, str]] = None, stdin: Optional[str] = None, quiet: bool = False) -> str:
    """Runs a program to its end and returns its standard output. Raises ClusterError with what it printed."""
    done = subprocess.run([str(c) for c in command], env=env, input=stdin, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode != 0:
        raise ClusterError(f"{' '.join(str(c) for c in command)} ended with {done.returncode}:\n{done.stderr.strip()[-2000:]}")
    if not quiet and done.stderr.strip():
        say(done.stderr.strip()[-2000:])
    return done.stdout


def ok(command: Sequence[str], env: Optional[Dict[str, str]] = None) -> bool:
    """Whether a program ends with 0; what it prints is dropped."""
    return subprocess.run([str(c) for c in command], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


def wait_for(what: str, check: Callable[[], bool], timeout_s: float, every_s: float = 0.2) -> None:
    deadline = time.monotonic() + timeout_s
    while not check():
        if time.monotonic() > deadline:
            raise ClusterError(f"{what}: not after {timeout_s:.0f} s")
        time.sleep(every_s)


class Processes:
    """Long-running programs by name. Pids and start times are kept in a file, so that a later call (or one after a crash of
    this script) finds and ends exactly these processes and no others that were given the same pid."""

    def __init__(self, state: pathlib.Path) -> None:
        self.directory = state / "processes"
        self.logs = state / "logs"
        self.directory.mkdir(parents=True, exist_ok=True)
        self.logs.mkdir(parents=True, exist_ok=True)

    @staticmethod
    def _started(pid: int) -> Optional[str]:
        """None when it has ended: a first thread that is a zombie still has its ports while another one is on its way out."""
        process = pathlib.Path(f"/proc/{pid}")
        try:
            fields = (process / "stat").read_text().rsplit(")", 1)[1].split()
            has_ended = fields[0] == "Z" and len(list((process / "task").iterdir())) <= 1
        except (FileNotFoundError, ProcessLookupError):
            return None
        return None if has_ended else fields[19]

    def pid(self, name: str) -> Optional[int]:
        path = self.directory / name
        if not path.exists():
            return None
        record = json.loads(path.read_text())
        return record["pid"] if self._started(record["pid"]) == record["started"] else None

    def start(self, name: str, command: Sequence[str], env: Optional[Dict[str, str]] = None) -> None:
        if self.pid(name) is not None:
            return
        with open(self.logs / f"{name}.log", "ab") as log:
            child = subprocess.Popen([str(c) for c in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                     start_new_session=True, env={**os.environ, **(env or {})})
        (self.directory / name).write_text(json.dumps({"pid": child.pid, "started": self._started(child.pid)}))

    def stop(self, name: str, grace_s: float = 10) -> None:
        pid = self.pid(name)
        if pid is not None:
            os.kill(pid, signal.SIGTERM)
            try:
                wait_for(f"{name} ends", lambda: self.pid(name) is None, grace_s, 0.05)
            except ClusterError:
                os.kill(pid, signal.SIGKILL)
                wait_for(f"{name} ends", lambda: self.pid(name) is None, 10, 0.05)
        (self.directory / name).unlink(missing_ok=True)

    def kill(self, name: str) -> None:
        """As when memory is out: it gets no chance to say good-bye."""
        pid = self.pid(name)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            wait_for(f"{name} ends", lambda: self.pid(name) is None, 10, 0.05)
        (self.directory / name).unlink(missing_ok=True)

    def names(self) -> Sequence[str]:
        return sorted(p.name for p in self.directory.iterdir())

    def tail(self, name: str, lines: int = 15) -> str:
        path = self.logs / f"{name}.log"
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) if path.exists() else "(no log)"
