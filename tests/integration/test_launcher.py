"""ringmaster-launch: what it runs, what it reports, what it leaves behind (nothing)."""

import os
import pathlib
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import time

import pytest
from conftest import PATIENCE_S, wait_until

HELLO, STARTED, EXITED, SIGNALLED, SIGNS, STACKS, START, STOP, LEAVE, LOOK = 1, 2, 3, 4, 5, 6, 16, 17, 18, 19
HELLO_STRUCT = struct.Struct("<IIIIQIIiI")
STARTED_STRUCT = struct.Struct("<QIIq")
EXITED_STRUCT = struct.Struct("<QiIqII256s1024s")


class Message:
    def __init__(self, kind, payload):
        self.kind, self.payload = kind, payload
        if kind == HELLO:
            (_, _, self.launcher_pid, self.running, self.fence, self.child_pid, self.has_exited, self.status,
             self.terminating) = HELLO_STRUCT.unpack(payload)
        elif kind == STARTED:
            self.fence, self.child_pid, _, self.wall_ms = STARTED_STRUCT.unpack(payload)
        elif kind == EXITED:
            self.fence, self.status, self.oom, self.wall_ms, self.not_started, self.stopped, reason, tail = EXITED_STRUCT.unpack(payload)
            self.reason, self.tail = (text.split(b"\0")[0].decode() for text in (reason, tail))


class Sidecar:
    """The sidecar's end of the socket, driven by the test."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.server = self.connection = None
        self.listen()

    def listen(self):
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(str(self.path))
        self.server.listen()

    def accept(self, timeout_s=PATIENCE_S):
        self.server.settimeout(timeout_s)
        self.connection, _ = self.server.accept()
        self.connection.settimeout(timeout_s)
        return self.read(HELLO)

    def vanish(self):
        self.connection.close()
        self.server.close()
        self.path.unlink()

    def read(self, kind, timeout_s=PATIENCE_S):
        self.connection.settimeout(timeout_s)
        header = self._exactly(8)
        length, got, fds = struct.unpack("<IHH", header)
        assert fds == 0
        assert got == kind
        return Message(got, self._exactly(length))

    def nothing_comes(self, seconds=0.1):
        return not select.select([self.connection], [], [], seconds)[0]

    def _exactly(self, count):
        data = b""
        while len(data) < count:
            more = self.connection.recv(count - len(data))
            assert more, "the launcher closed the connection"
            data += more
        return data

    def send(self, kind, payload):
        self.connection.sendall(struct.pack("<IHH", len(payload), kind, 0) + payload)

    def start(self, fence=1 << 32 | 1, **env):
        self.send(START, struct.pack("<Q", fence) + b"".join(f"{k}={v}\0".encode() for k, v in env.items()))

    def stop(self, fence=1 << 32 | 1, grace_ms=2000):
        self.send(STOP, struct.pack("<QII", fence, grace_ms, 0))

    def leave(self, code=-1):
        self.send(LEAVE, struct.pack("<iI", code, 0))

    def close(self):
        for s in (self.connection, self.server):
            if s:
                s.close()


@pytest.fixture
def sidecar(job_dir):
    job_dir.mkdir()
    s = Sidecar(job_dir / "sidecar.sock")
    yield s
    s.close()


@pytest.fixture
def launch(launch_path, sidecar, tmp_path):
    """Starts the launcher on a command; its output is in files. Killed with the test."""
    started = []

    def start(*command, options=(), **popen):
        with open(tmp_path / "out", "wb") as out, open(tmp_path / "err", "wb") as err:
            process = subprocess.Popen([launch_path, "--socket", sidecar.path, *options, "--", *map(str, command)],
                                       stdin=subprocess.DEVNULL, stdout=out, stderr=err, **popen)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()


def run(launch_path, *command, **popen):
    return subprocess.run([launch_path, "--no-sidecar", "--", *map(str, command)], capture_output=True, timeout=PATIENCE_S, **popen)


def ready(path):
    wait_until(lambda: b"ready" in path.read_bytes(), what="the script ready")


def script(tmp_path, text, name="script.py"):
    path = tmp_path / name
    path.write_text(text)
    return [sys.executable, str(path)]


# ---- exit codes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line, code",
    [("exit 0", 0), ("exit 1", 1), ("exit 2", 2), ("exit 255", 255), ("kill -9 $$", 137), ("kill -11 $$", 139), ("kill -15 $$", 143),
     ("kill -6 $$", 134), ("ulimit -c 0; kill -3 $$", 131)],
)
def test_the_exit_code_is_exact(launch_path, line, code):
    assert run(launch_path, "sh", "-c", line).returncode == code


@pytest.mark.parametrize(
    "command, code, words",
    [
        (["no-such-program-here"], 127, "not found in PATH"),
        (["/no/such/file"], 127, "/no/such/file: No such file or directory"),
        (["python train.py"], 127, "; this is one word with a space: the program and each argument are words of their own"),
        (["./no-such-script"], 127, f"./no-such-script in {os.getcwd()}: No such file or directory"),
        (["/etc/passwd"], 126, "/etc/passwd: Permission denied"),
        (["/tmp"], 126, "/tmp: "),
        ([""], 127, "the command is empty"),
    ],
)
def test_a_command_that_cannot_be_run_is_named(launch_path, command, code, words):
    result = run(launch_path, *command)
    assert result.returncode == code
    assert words in result.stderr.decode()


def test_a_missing_interpreter_is_told_from_a_missing_file(launch_path, tmp_path):
    path = tmp_path / "train.py"
    path.write_text("#!/no/such/python\n")
    path.chmod(0o755)
    result = run(launch_path, path)
    assert result.returncode == 127
    assert f"{path}: the interpreter" in result.stderr.decode()


def test_a_file_that_is_no_program_is_told(launch_path, tmp_path):
    path = tmp_path / "model.bin"
    path.write_bytes(b"\x00\x01\x02\x03" * 64)
    path.chmod(0o755)
    result = run(launch_path, path)
    assert result.returncode == 126
    assert "no program for this machine" in result.stderr.decode()


def test_without_a_command_it_says_how_it_is_used(launch_path):
    result = subprocess.run([launch_path], capture_output=True, timeout=PATIENCE_S, text=True)
    assert result.returncode == 2
    assert "no command" in result.stderr


# ---- what the command sees -----------------------------------------------------------------------------------------------


def test_output_passes_untouched(launch_path):
    data = bytes(range(256)) * 1000
    result = run(launch_path, sys.executable, "-c",
                 "import sys; d = bytes(range(256)) * 1000; sys.stdout.buffer.write(d); sys.stderr.buffer.write(d[::-1])")
    assert result.stdout == data
    assert result.stderr == data[::-1]


def test_stdin_is_inherited(launch_path):
    assert run(launch_path, "cat", input=b"hello\0world").stdout == b"hello\0world"


def test_signals_are_as_a_shell_would_leave_them(launch_path):
    result = run(launch_path, "cat", "/proc/self/status")
    fields = dict(line.split(":\t", 1) for line in result.stdout.decode().splitlines() if ":\t" in line)
    assert int(fields["SigBlk"], 16) == 0
    # glibc's posix_spawn, by which make starts programs, leaves its own signals 32 and 33 ignored; no program can set them.
    assert int(fields["SigIgn"], 16) & ~(0b11 << 31) == 0
    assert fields["Pid"] == fields["NSpid"].split()[-1]


def test_it_is_the_leader_of_its_own_session(launch_path):
    result = run(launch_path, sys.executable, "-c", "import os; print(os.getpid() == os.getsid(0) == os.getpgid(0))")
    assert result.stdout == b"True\n"


def test_no_descriptor_of_the_launcher_reaches_it(launch_path):
    result = run(launch_path, sys.executable, "-c", "import os; print(sorted(int(f) for f in os.listdir('/proc/self/fd')))")
    assert result.stdout == b"[0, 1, 2, 3]\n"  # the last is listdir's own


# ---- talking to the sidecar ----------------------------------------------------------------------------------------------


def test_nothing_runs_before_the_word(launch, sidecar, tmp_path):
    launch("sh", "-c", "echo ran")
    hello = sidecar.accept()
    assert (hello.running, hello.fence, hello.has_exited) == (0, 0, 0)
    assert sidecar.nothing_comes(0.3)
    assert (tmp_path / "out").read_bytes() == b""


def test_a_life_with_restarts_in_place(launch, sidecar, tmp_path):
    process = launch("sh", "-c", 'echo "$RINGMASTER_ROUND $PATH_WAS_KEPT"; exit $CODE', env={**os.environ, "CODE": "9", "PATH_WAS_KEPT": "yes"})
    sidecar.accept()
    for number, code in ((1, 3), (2, 0)):
        fence = 1 << 32 | number
        sidecar.start(fence, RINGMASTER_ROUND=number, CODE=code)
        assert sidecar.read(STARTED).fence == fence
        exited = sidecar.read(EXITED)
        assert (exited.fence, exited.status, exited.stopped, exited.not_started, exited.reason) == (fence, code << 8, 0, 0, "")
        assert process.poll() is None
    assert (tmp_path / "out").read_text() == "1 yes\n2 yes\n"
    sidecar.leave()
    assert process.wait(PATIENCE_S) == 0


def test_it_leaves_with_the_code_of_the_last_process(launch, sidecar):
    process = launch("sh", "-c", "kill -11 $$")
    sidecar.accept()
    sidecar.start()
    sidecar.read(STARTED)
    assert os.WTERMSIG(sidecar.read(EXITED).status) == signal.SIGSEGV
    sidecar.leave(-1)
    assert process.wait(PATIENCE_S) == 139


def test_it_leaves_with_a_given_code_and_ends_the_process(launch, sidecar, processes, wait_for):
    process = launch("sleep", "1000")
    sidecar.accept()
    sidecar.start()
    sidecar.read(STARTED)
    sidecar.leave(7)
    assert process.wait(PATIENCE_S) == 7
    wait_for(lambda: not processes(), what="every process gone")


def test_a_command_that_cannot_be_run_is_reported_with_its_reason(launch, sidecar):
    process = launch("/no/such/train.py")
    sidecar.accept()
    sidecar.start()
    exited = sidecar.read(EXITED)
    assert exited.not_started == 1
    assert os.WEXITSTATUS(exited.status) == 127
    assert "/no/such/train.py" in exited.reason
    sidecar.leave()
    assert process.wait(PATIENCE_S) == 127


def test_stop_ends_a_process_that_ignores_sigterm(launch, sidecar, tmp_path):
    launch("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done")
    sidecar.accept()
    sidecar.start()
    sidecar.read(STARTED)
    ready(tmp_path / "out")
    begin = time.monotonic()
    sidecar.stop(grace_ms=300)
    exited = sidecar.read(EXITED)
    assert time.monotonic() - begin > 0.25, "it had its grace"
    assert os.WTERMSIG(exited.status) == signal.SIGKILL
    assert exited.stopped == 1


def test_stop_lets_a_process_end_by_itself(launch, sidecar, tmp_path):
    launch(*script(tmp_path, "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *a: sys.exit(5))\nprint('ready', flush=True)\ntime.sleep(100)\n"))
    sidecar.accept()
    sidecar.start()
    sidecar.read(STARTED)
    ready(tmp_path / "out")
    sidecar.stop(grace_ms=60000)
    exited = sidecar.read(EXITED)
    assert (os.WEXITSTATUS(exited.status), exited.stopped) == (5, 1)


def test_sigterm_is_reported_at_once_and_passed_on(launch, sidecar, tmp_path):
    process = launch(*script(tmp_path, """
import os, signal, sys, time
def end(*_):
    while not os.path.exists("may-end"):
        time.sleep(0.01)
    sys.exit(41)
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
time.sleep(100)
"""), cwd=tmp_path)
    sidecar.accept()
    sidecar.start()
    sidecar.read(STARTED)
    ready(tmp_path / "out")
    process.terminate()
    sidecar.read(SIGNALLED)
    (tmp_path / "may-end").touch()
    exited = sidecar.read(EXITED)
    assert os.WEXITSTATUS(exited.status) == 41
    assert process.wait(PATIENCE_S) == 41


OBEYS = "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *a: sys.exit(0))\nprint('ready', flush=True)\ntime.sleep(100)\n"


def test_a_process_that_obeys_sigterm_has_not_finished(launch, sidecar, tmp_path):
    """Exit 0 would tell Kubernetes that the replica's work is done; nobody has said so."""
    process = launch(*script(tmp_path, OBEYS))
    sidecar.accept()
    sidecar.start()
    sidecar.read(STARTED)
    ready(tmp_path / "out")
    process.terminate()
    sidecar.read(SIGNALLED)
    assert os.WEXITSTATUS(sidecar.read(EXITED).status) == 0, "the sidecar hears the code as it is"
    assert process.wait(PATIENCE_S) == 143


def test_sigterm_to_one_that_is_done_and_held_is_no_success_and_leave_is(launch, sidecar):
    process = launch("true")
    sidecar.accept()
    sidecar.start()
    sidecar.read(STARTED)
    sidecar.read(EXITED)
    process.terminate()
    assert process.wait(PATIENCE_S) == 143

    process = launch("true")
    sidecar.accept()
    sidecar.start()
    sidecar.read(STARTED)
    sidecar.read(EXITED)
    sidecar.leave(-1)
    assert process.wait(PATIENCE_S) == 0


def test_without_a_sidecar_the_code_after_sigterm_is_that_of_the_process(launch_path, tmp_path):
    path = tmp_path / "obeys.py"
    path.write_text(OBEYS)
    process = subprocess.Popen([launch_path, "--no-sidecar", "--", sys.executable, str(path)], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    process.terminate()
    assert process.wait(PATIENCE_S) == 0


def test_sigterm_before_the_start_ends_it(launch, sidecar):
    process = launch("sleep", "1000")
    sidecar.accept()
    process.terminate()
    sidecar.read(SIGNALLED)
    assert process.wait(PATIENCE_S) == 143


def test_a_grace_time_of_its_own_bounds_sigterm(launch_path, tmp_path, wait_for):
    with open(tmp_path / "out", "wb") as out:
        process = subprocess.Popen([launch_path, "--no-sidecar", "--grace", "300ms", "--", "sh", "-c",
                                    "trap '' TERM; echo ready; while :; do sleep 1; done"], stdout=out)
    ready(tmp_path / "out")
    process.terminate()
    assert process.wait(PATIENCE_S) == 137


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH])
def test_other_signals_are_passed_on_once(launch, sidecar, tmp_path, number, wait_for):
    process = launch(*script(tmp_path, """
import signal, time
got = []
for n in (1, 2, 3, 10, 12, 28):
    signal.signal(n, lambda n, f: (got.append(n), print(n, flush=True)))
print("ready", flush=True)
end = time.monotonic() + 60
while time.monotonic() < end and not got:
    time.sleep(0.01)
time.sleep(0.2)
raise SystemExit(len(got))
"""))
    sidecar.accept()
    sidecar.start()
    sidecar.read(STARTED)
    ready(tmp_path / "out")
    process.send_signal(number)
    assert os.WEXITSTATUS(sidecar.read(EXITED).status) == 1
    assert process.poll() is None
    assert (tmp_path / "out").read_text() == f"ready\n{int(number)}\n"


# ---- the sidecar goes and comes back ---------------------------------------------------------------------------------------


def test_it_waits_for_a_sidecar_that_is_not_up_yet(launch, sidecar, wait_for):
    sidecar.server.close()
    sidecar.path.unlink()
    process = launch("true")
    time.sleep(0.2)
    assert process.poll() is None
    sidecar.listen()
    sidecar.accept()


def test_the_process_runs_on_while_the_sidecar_is_gone(launch, sidecar):
    launch("sleep", "1000")
    sidecar.accept()
    sidecar.start(fence=1 << 32 | 5)
    pid = sidecar.read(STARTED).child_pid
    sidecar.vanish()
    time.sleep(0.2)
    os.kill(pid, 0)
    sidecar.listen()
    hello = sidecar.accept()
    assert (hello.running, hello.fence, hello.child_pid, hello.has_exited) == (1, 1 << 32 | 5, pid, 0)


def test_an_end_that_nobody_heard_is_told_later(launch, sidecar, wait_for):
    process = launch("sh", "-c", "sleep 0.2; exit 23")
    sidecar.accept()
    sidecar.start()
    pid = sidecar.read(STARTED).child_pid
    sidecar.vanish()
    wait_for(lambda: not pathlib.Path(f"/proc/{pid}").exists(), what="the process reaped")
    sidecar.listen()
    hello = sidecar.accept()
    assert (hello.running, hello.has_exited, os.WEXITSTATUS(hello.status)) == (0, 1, 23)
    exited = sidecar.read(EXITED)
    assert os.WEXITSTATUS(exited.status) == 23
    sidecar.leave()
    assert process.wait(PATIENCE_S) == 23


# ---- nothing is left -------------------------------------------------------------------------------------------------------

HELPERS = """
import os, signal, sys, time
if os.fork() == 0:                      # a data worker in the same session
    time.sleep(1000)
if os.fork() == 0:                      # a daemon: its own session, forked twice, deaf to SIGTERM
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(1000)
    os._exit(0)
print("ready", flush=True)
"""


def test_helpers_end_with_the_process(launch, sidecar, tmp_path, processes, wait_for):
    launch(*script(tmp_path, HELPERS + "sys.exit(4)\n"))
    sidecar.accept()
    sidecar.start()
    sidecar.read(STARTED)
    exited = sidecar.read(EXITED)
    assert os.WEXITSTATUS(exited.status) == 4
    assert len([line for line in processes().values() if "script.py" in line and "launch" not in line]) == 0


def test_stop_ends_helpers_too(launch, sidecar, tmp_path, processes, wait_for):
    launch(*script(tmp_path, HELPERS + "time.sleep(1000)\n"))
    sidecar.accept()
    sidecar.start()
    sidecar.read(STARTED)
    ready(tmp_path / "out")
    sidecar.stop(grace_ms=300)
    sidecar.read(EXITED)
    assert len([line for line in processes().values() if "script.py" in line and "launch" not in line]) == 0


def test_a_killed_guard_leaves_nothing(launch, sidecar, tmp_path, processes, wait_for):
    process = launch(*script(tmp_path, HELPERS + "time.sleep(1000)\n"))
    sidecar.accept()
    sidecar.start()
    sidecar.read(STARTED)
    ready(tmp_path / "out")
    process.kill()
    process.wait()
    wait_for(lambda: not processes(), what="every process gone")


def test_a_killed_launcher_leaves_nothing(launch, sidecar, tmp_path, processes, wait_for):
    process = launch(*script(tmp_path, HELPERS + "time.sleep(1000)\n"))
    hello = sidecar.accept()
    assert hello.launcher_pid != process.pid
    sidecar.start()
    sidecar.read(STARTED)
    ready(tmp_path / "out")
    os.kill(hello.launcher_pid, signal.SIGKILL)
    assert process.wait(PATIENCE_S) == 137
    wait_for(lambda: not processes(), what="every process gone")


def test_it_dies_with_its_parent_when_told_to(launch_path, tmp_path, processes, wait_for):
    command = script(tmp_path, HELPERS + "time.sleep(1000)\n")
    parent = script(tmp_path, f"""
import subprocess, time
subprocess.Popen([{str(launch_path)!r}, "--no-sidecar", "--die-with-parent", "--", *{command!r}], stdout=open({str(tmp_path / "out")!r}, "wb"))
time.sleep(1000)
""", name="parent.py")
    (tmp_path / "out").touch()
    process = subprocess.Popen(parent)
    ready(tmp_path / "out")
    process.kill()
    process.wait()
    wait_for(lambda: not processes(), what="every process gone")


# ---- installing ------------------------------------------------------------------------------------------------------------


def test_it_copies_itself_and_the_client_files(launch_path, tmp_path):
    library = tmp_path / "client/lib"
    library.mkdir(parents=True)
    (library / "libringmaster.so").write_bytes(b"\x7fELF" + bytes(100000))
    package = tmp_path / "client/python/ringmaster"
    (package / "__pycache__").mkdir(parents=True)
    (package / "__init__.py").write_text("x = 1\n")
    (package / "__pycache__/x.pyc").write_text("")
    to = tmp_path / "shared"
    for _ in range(2):  # a sidecar that starts again installs over what runs
        subprocess.run([launch_path, "--install", to, "--library-dir", library], check=True, timeout=PATIENCE_S)
    assert (to / "bin/ringmaster-launch").read_bytes() == pathlib.Path(launch_path).read_bytes()
    assert os.access(to / "bin/ringmaster-launch", os.X_OK)
    assert (to / "lib/libringmaster.so").read_bytes() == (library / "libringmaster.so").read_bytes()
    assert (to / "python/ringmaster/__init__.py").read_text() == "x = 1\n"
    assert not (to / "python/ringmaster/__pycache__").exists()
    assert not list(to.rglob("*.new"))


def test_installing_where_nothing_can_be_written_says_so(launch_path, tmp_path):
    (tmp_path / "file").write_text("")
    result = subprocess.run([launch_path, "--install", tmp_path / "file/dir"], capture_output=True, text=True, timeout=PATIENCE_S)
    assert result.returncode == 1
    assert str(tmp_path / "file/dir") in result.stderr


# ---- the end of the log ------------------------------------------------------------------------------------------------------


def ended(sidecar):
    sidecar.accept()
    sidecar.start()
    sidecar.read(STARTED)
    return sidecar.read(EXITED, 20)


@pytest.mark.parametrize("text,tail", [
    ("one\\ntwo\\n", "one\ntwo"),
    ("", ""),
    ("half a line", "half a line"),
    ("\\377\\001x\\n", "? x"),
])
def test_the_last_lines_of_stderr_are_told(launch, sidecar, tmp_path, text, tail):
    launch("/bin/sh", "-c", f"printf '{text}' >&2; exit 3")
    assert ended(sidecar).tail == tail
    assert (tmp_path / "err").read_bytes() == subprocess.run(["printf", text], capture_output=True, check=True).stdout


def test_a_long_log_leaves_whole_lines_of_its_end(launch, sidecar, tmp_path):
    launch(*script(tmp_path, "import sys\nfor i in range(20000): print(f'line {i} ' + 'x' * 40, file=sys.stderr)\nsys.exit(1)"))
    lines = ended(sidecar).tail.split("\n")
    assert lines == [f"line {i} " + "x" * 40 for i in range(20000 - len(lines), 20000)] and len(lines) > 15
    assert (tmp_path / "err").read_text() == "".join(f"line {i} " + "x" * 40 + "\n" for i in range(20000))


def test_each_process_has_a_tail_of_its_own(launch, sidecar, tmp_path):
    launch("/bin/sh", "-c", 'echo "round $RINGMASTER_ROUND" >&2; exit 1')
    sidecar.accept()
    for number in (1, 2):
        sidecar.start(1 << 32 | number, RINGMASTER_ROUND=str(number))
        sidecar.read(STARTED)
        assert sidecar.read(EXITED, 20).tail == f"round {number}"
    assert (tmp_path / "err").read_text() == "round 1\nround 2\n"


def test_stdout_and_stderr_of_one_file_keep_their_order(launch_path, sidecar, tmp_path):
    command = ["/bin/sh", "-c", "for i in 1 2 3 4 5 6 7 8 9; do echo out $i; echo err $i >&2; done; exit 1"]
    with open(tmp_path / "both", "wb") as both:
        process = subprocess.Popen([launch_path, "--socket", sidecar.path, "--", *command], stdin=subprocess.DEVNULL, stdout=both, stderr=both)
    expected = "".join(f"out {i}\nerr {i}\n" for i in range(1, 10))
    assert ended(sidecar).tail == expected.rstrip()
    sidecar.leave()
    assert process.wait(20) == 1
    assert (tmp_path / "both").read_text() == expected


def test_a_reader_that_is_slow_holds_up_the_process_and_not_the_launcher(launch_path, sidecar, tmp_path, wait_for):
    """The process writes more than two pipes hold; nobody reads. The launcher still hears the sidecar, and all of it arrives later."""
    read_end, write_end = os.pipe()
    program = script(tmp_path, "import sys, signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
                               f"open('{tmp_path}/ready', 'w').close()\nsys.stderr.write('x' * (1 << 20))\n")
    process = subprocess.Popen([launch_path, "--socket", sidecar.path, "--", *program], stdin=subprocess.DEVNULL, stderr=write_end)
    os.close(write_end)
    sidecar.accept()
    sidecar.start()
    sidecar.read(STARTED)
    os.set_blocking(read_end, False)
    wait_for((tmp_path / "ready").exists)
    sidecar.stop(grace_ms=200)
    exited = sidecar.read(EXITED, 20)
    assert os.WIFSIGNALED(exited.status) and exited.tail.strip("x") == ""
    sidecar.leave()
    os.set_blocking(read_end, True)
    got = 0
    while block := os.read(read_end, 65536):
        got += len(block)
    os.close(read_end)
    assert process.wait(20) == 137 and got >= 65536


def test_a_reader_that_is_gone_is_told_to_the_process(launch_path, sidecar, tmp_path):
    read_end, write_end = os.pipe()
    process = subprocess.Popen([launch_path, "--socket", sidecar.path, "--", "/bin/sh", "-c", "while :; do echo on and on >&2; done"],
                               stdin=subprocess.DEVNULL, stderr=write_end)
    os.close(write_end)
    os.close(read_end)
    exited = ended(sidecar)
    assert os.WIFSIGNALED(exited.status) and os.WTERMSIG(exited.status) == signal.SIGPIPE
    sidecar.leave()
    assert process.wait(20) == 141


# ---- what the processes do -------------------------------------------------------------------------------------------------


def look(sidecar, what, number=7):
    sidecar.send(LOOK, struct.pack("<II", what, number))
    payload = sidecar.read(SIGNS if what == 1 else STACKS, 20).payload
    assert payload[:4] == struct.pack("<I", number)
    return struct.unpack("<IIQQ", payload)[1:] if what == 1 else payload[4:].decode()


def test_signs_of_life_grow_with_cpu_time_and_output(launch, sidecar, tmp_path, wait_for):
    launch(*script(tmp_path, "import os, sys, time\n"
                             "if os.fork() == 0:\n  while True: pass\n"  # a data worker
                             "print('x' * 999, file=sys.stderr, flush=True)\n"
                             f"open('{tmp_path}/ready', 'w').close()\ntime.sleep(600)"))
    sidecar.accept()
    assert look(sidecar, 1) == (0, 0, 0)  # nothing runs
    sidecar.start()
    sidecar.read(STARTED)
    wait_for((tmp_path / "ready").exists)
    wait_for(lambda: look(sidecar, 1)[2] == 1000, what="the output")
    traced, cpu_ms, _ = look(sidecar, 1)
    assert traced == 0
    wait_for(lambda: look(sidecar, 1)[1] > cpu_ms + 50, what="CPU time")


def test_stacks_of_a_process_that_knows_nothing_of_us(launch, sidecar, tmp_path):
    launch("/bin/sh", "-c", "sleep 600 & wait")
    sidecar.accept()
    sidecar.start()
    sidecar.read(STARTED)
    text = ""
    while "process" not in text or "sleep 600" not in text:
        text = look(sidecar, 2)
    assert "Python" not in text and text.count("\n  thread ") == 2
    assert sidecar.nothing_comes()  # both live: nobody was sent a signal that it does not know


@pytest.mark.parametrize("command", ["time.sleep(600)", "while True: pass", "signal.pthread_sigmask(signal.SIG_BLOCK, [50]); time.sleep(600)"])
def test_python_stacks_of_a_process_that_uses_the_package(launch, sidecar, tmp_path, client_library, root, wait_for, command):
    program = script(tmp_path, "import signal, sys, threading, time\n"
                               f"sys.path.insert(0, '{client_library.parent.parent}/python')\nimport ringmaster\n"
                               "def a_function_that_hangs():\n"
                               f"  open('{tmp_path}/ready', 'w').close()\n"
                               f"  {command}\n"
                               "threading.Thread(target=a_function_that_hangs, daemon=True).start()\na_function_that_hangs()")
    launch(*program)
    sidecar.accept()
    sidecar.start(RINGMASTER_SOCKET=str(sidecar.path))
    sidecar.read(STARTED)
    wait_for((tmp_path / "ready").exists, 30)
    text = look(sidecar, 2)
    if "sigmask" in command:  # another thread takes it
        text = look(sidecar, 2)
    assert text.count("in a_function_that_hangs") >= 1 and "Python stacks of process" in text
    assert look(sidecar, 2).count("Python stacks of process") == 1  # only what is new


# ---- cost ------------------------------------------------------------------------------------------------------------------


def test_it_is_small_and_needs_no_library(launch_path, build, root):
    if build != root / "build":
        return  # a sanitizer brings its own
    assert pathlib.Path(launch_path).stat().st_size < 2 << 20
    elf = subprocess.run(["readelf", "-d", launch_path], capture_output=True, text=True, check=True).stdout
    assert "NEEDED" not in elf, "the launcher must be static: it runs in any image"


def test_it_costs_little_processor_time(launch_path):
    def used():
        spent = resource.getrusage(resource.RUSAGE_CHILDREN)
        return spent.ru_utime + spent.ru_stime

    before = used()
    for _ in range(20):
        subprocess.run([launch_path, "--no-sidecar", "--", "/bin/true"], check=True)
    assert (used() - before) / 20 < 0.5
