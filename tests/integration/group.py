"""A group of sidecars and launchers on loopback addresses, started by hand: no runner, no operator.

    group = Group(tmp, mark, sidecar_path, launch_path, commands={"chief-0": [...], "worker-0": [...]})
    group.start()

Each member is a directory with its socket, its slots and its logs. A control socket takes the coordinator's reports.
"""

import contextlib
import json
import os
import pathlib
import select
import shutil
import signal
import socket
import subprocess
import threading
import time
import uuid

ROLE_KEYS = {"chief": "Chief", "master": "Master", "worker": "Worker", "ps": "PS", "evaluator": "Evaluator"}
RANKED = ("chief", "master", "worker")


def free_port(host):
    """A port that nobody uses on this address now; the ephemeral range is avoided so that no outgoing connection takes it."""
    for port in range(20000 + os.getpid() % 8000, 32000):
        with contextlib.closing(socket.socket()) as s:
            try:
                s.bind((host, port))
            except OSError:
                continue
            return port
    raise RuntimeError("no free port")


class Control:
    """The runner's end of RINGMASTER_CONTROL: keeps every report that comes."""

    def __init__(self, path):
        self.reports = []
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(str(path))
        self.server.listen()
        self.stop = False
        self.connection = None
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self):
        while not self.stop:
            if not select.select([self.server], [], [], 0.1)[0]:
                continue
            connection, _ = self.server.accept()
            self.connection = connection
            rest = b""
            with connection:
                while not self.stop:
                    if not select.select([connection], [], [], 0.1)[0]:
                        continue
                    try:
                        data = connection.recv(65536)
                    except OSError:
                        break
                    if not data:
                        break
                    *lines, rest = (rest + data).split(b"\n")
                    self.reports += [json.loads(line) for line in lines]
            self.connection = None

    def send(self, command):
        self.connection.sendall(json.dumps(command).encode() + b"\n")

    @property
    def last(self):
        return self.reports[-1] if self.reports else None

    def close(self):
        self.stop = True
        self.thread.join()
        self.server.close()


class Group:
    def __init__(self, sidecar, launch, commands, *, restart_policy="OnFailure", policy=None, env=None, peer_timeout="20s", wrap=()):
        self.sidecar_path, self.launch_path = str(sidecar), str(launch)
        self.commands = commands
        self.members = list(commands)
        self.ranked = [m for m in self.members if m.rpartition("-")[0] in RANKED]
        self.env = dict(env or os.environ)
        self.peer_timeout = peer_timeout
        self.wrap = list(wrap)
        self.wraps = {}  # member: what stands in front of its sidecar in place of that
        self.dir = pathlib.Path("/tmp") / f"rm-group-{uuid.uuid4().hex[:10]}"
        self.dir.mkdir()
        self.key_file = self.dir / "key"
        self.key_file.write_text(os.urandom(32).hex() + "\n")
        self.uid = str(uuid.uuid4())
        self.hosts = {m: f"127.0.0.{2 + i}" for i, m in enumerate(self.members)}
        self.port = free_port("0.0.0.0")
        self.control = Control(self.dir / "control.sock")
        self.sidecars, self.launchers = {}, {}
        self.extra = {}
        roles = {}
        for m in self.members:
            role = ROLE_KEYS[m.rpartition("-")[0]]
            roles.setdefault(role, {"replicas": 0, "restartPolicy": restart_policy, "containers": ["tensorflow"]})["replicas"] += 1
        self.policy = {
            "uid": self.uid, "backoffLimit": 6, "restartWindowSeconds": 0, "backoffBaseSeconds": 1, "backoffMaxSeconds": 2,
            "restartStrategy": "InPlace", "oomPolicy": "Fail", "successPolicy": "", "enableDynamicWorker": False,
            "containerName": "tensorflow", "roles": roles, "rules": [], **(policy or {}),
        }

    def member_env(self, member):
        role, _, index = member.rpartition("-")
        home = self.dir / member
        (home / "shm").mkdir(parents=True, exist_ok=True)
        rank = self.ranked.index(member) if member in self.ranked else -1
        return {
            **self.env,
            "RINGMASTER_JOB": "test", "RINGMASTER_JOB_UID": self.uid, "RINGMASTER_ROLE": role, "RINGMASTER_INDEX": index,
            "RINGMASTER_RANK": str(rank), "RINGMASTER_SIZE": str(len(self.ranked)), "RINGMASTER_ATTEMPT": "1",
            "RINGMASTER_MEMBERS": ",".join(self.members), "RINGMASTER_COORDINATOR": f"{self.hosts[self.members[0]]}:{self.port}",
            "RINGMASTER_ADDRESS": self.hosts[member], "RINGMASTER_PORT": str(self.port), "RINGMASTER_DIR": str(home),
            "RINGMASTER_SHM_DIR": str(home / "shm"), "RINGMASTER_CHECKPOINT_DIR": str(self.dir / "checkpoints"),
            "RINGMASTER_KEY_FILE": str(self.key_file), "RINGMASTER_POLICY": json.dumps(self.policy),
            "RINGMASTER_CONTROL": f"unix:{self.dir / 'control.sock'}", "RINGMASTER_PEER_TIMEOUT": self.peer_timeout,
            "RINGMASTER_SOCKET": str(home / "sidecar.sock"), "RINGMASTER_GRACE": "2s", "HOME_DIR": str(home),
            **self.extra.get(member, {}),
        }

    def start_sidecar(self, member):
        env = self.member_env(member)
        with open(self.dir / member / "sidecar.log", "ab") as log:
            process = subprocess.Popen([*self.wraps.get(member, self.wrap), self.sidecar_path], env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.sidecars[member] = process
        return process

    def start_launcher(self, member):
        env = self.member_env(member)
        home = self.dir / member
        with open(home / "out", "ab") as out, open(home / "err", "ab") as err:
            process = subprocess.Popen([self.launch_path, "--die-with-parent", "--", *map(str, self.commands[member])], env=env,
                                       stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=home)
        self.launchers[member] = process
        return process

    def start(self, members=None):
        for member in members or self.members:
            self.start_sidecar(member)
            self.start_launcher(member)
        return self

    def out(self, member):
        path = self.dir / member / "out"
        return path.read_text() if path.exists() else ""

    def log(self, member):
        return (self.dir / member / "sidecar.log").read_text()

    def state(self, member):
        report = self.control.last
        return next((m for m in report["members"] if m["member"] == member), None) if report else None

    def running(self):
        """{member: pid} once every process of the newest round runs, else None."""
        report = self.control.last
        if not report or not report["formed"]:
            return None
        pids = {m["member"]: m["pid"] for m in report["members"] if m["state"] == "Running"}
        return pids if len(pids) == len(self.members) else None

    def logs(self):
        return "\n".join(f"==== {m}\n{self.log(m)}" for m in self.members if (self.dir / m / "sidecar.log").exists())

    def close(self):
        for process in self.launchers.values():
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
        for process in self.launchers.values():
            process.wait(60)
        for process in self.sidecars.values():
            if process.poll() is None:
                process.terminate()
        deadline = time.monotonic() + 60
        for process in self.sidecars.values():
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.control.close()
        shutil.rmtree(self.dir, ignore_errors=True)
