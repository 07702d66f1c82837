"""What every integration test gets: the programs as built, a job directory, and a guard against what it leaves behind.

RINGMASTER_BUILD names the build directory of a variant (build/asan); without it the programs of build/ are tested.

    def test_it_trains(ringmaster, job_dir):
        result = ringmaster("run", "-f", manifest, "--job-dir", job_dir)
        assert result.returncode == 0, result.stderr

A test ends after 300 s; `@pytest.mark.timeout_s(600)` gives it longer. These limits, and PATIENCE_S, are for what never comes: no
test says how long something may take, for other work may stand before it on the machine. Processes are found by a variable that every child of
the test inherits, so a test fails when it leaves one of its own alive, and nobody else's process is ever touched.
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import time
import uuid

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = pathlib.Path(os.environ.get("RINGMASTER_BUILD", ROOT / "build")).resolve()
VENV = ROOT / "build/venv"
MARK = "RM_TEST_MARK"
TIMEOUT_S = 300
PATIENCE_S = 120


def pytest_configure(config):
    config.addinivalue_line("markers", "timeout_s(seconds): end this test after so long (default 300)")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """In CI a test that cannot run is a failure: nothing may be missing there."""
    report = yield
    if report.skipped and os.environ.get("CI"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} cannot be skipped in CI: {report.longrepr}"
    return report


# ---- processes ---------------------------------------------------------------------------------------------------------


def processes_with(mark):
    """{pid: command line} of the living processes that carry this test's mark, zombies and this process aside."""
    needle = f"{MARK}={mark}".encode()
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if needle in (entry / "environ").read_bytes().split(b"\0"):
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if state != "Z":
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it ended while we looked, or is not ours
    return found


def wait_until(condition, timeout_s=PATIENCE_S, what="the condition", every_s=0.02):
    """Waits for condition() to be true and returns its value; never sleeps longer than that takes. Exceptions are not caught."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            pytest.fail(f"{what} did not come true within {timeout_s} s")
        time.sleep(every_s)


@pytest.fixture
def wait_for():
    """wait_for(condition, what="...")."""
    return wait_until


@pytest.fixture
def mark():
    return uuid.uuid4().hex


@pytest.fixture
def processes(mark):
    """Call it: {pid: command line} of what this test has started and is alive now."""
    return lambda: processes_with(mark)


def left_behind(mark, patience_s=20):
    """What is alive after a moment. None counts only when seen twice: a process in the middle of exec shows no environment."""
    deadline = time.monotonic() + patience_s
    quiet = 0
    left = {}
    while quiet < 2 and time.monotonic() < deadline:
        left = processes_with(mark)
        quiet = 0 if left else quiet + 1
        time.sleep(0.02)
    return left


@pytest.fixture(autouse=True)
def guard(request, mark, monkeypatch):
    """A time limit for the test, and no process of it alive afterwards."""
    monkeypatch.setenv(MARK, mark)
    marker = request.node.get_closest_marker("timeout_s")
    limit_s = marker.args[0] if marker else TIMEOUT_S

    def late(_signal, _frame):
        pytest.fail(f"the test ran longer than {limit_s} s; alive: {processes_with(mark)}")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(limit_s)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        left = left_behind(mark)
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
    if left:
        pytest.fail("the test left processes behind: " + "; ".join(f"{pid}: {line}" for pid, line in left.items()))


# ---- programs ----------------------------------------------------------------------------------------------------------


def program(name):
    path = BUILD / "bin" / name
    if not path.exists():
        pytest.fail(f"{path} is not built: run make{'' if BUILD == ROOT / 'build' else f' VARIANT={BUILD.name}'}")
    return path


@pytest.fixture(scope="session")
def root():
    return ROOT


@pytest.fixture(scope="session")
def build():
    """Of the variant: build/ or build/asan."""
    return BUILD


@pytest.fixture(scope="session")
def ringmaster_path():
    return program("ringmaster")


@pytest.fixture(scope="session")
def sidecar_path():
    return program("ringmaster-sidecar")


@pytest.fixture(scope="session")
def launch_path():
    return program("ringmaster-launch")


@pytest.fixture(scope="session")
def checkpoint():
    """The checkpoint engine on a command line (tests/programs/checkpoint.c), built with what is tested."""
    variant = BUILD.name if BUILD.parent.name == "build" else "release"
    path = BUILD / "tests/programs/checkpoint"
    env = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    subprocess.run(["make", "-s", f"VARIANT={variant}", str(path.relative_to(ROOT))], cwd=ROOT, env=env, check=True, timeout=600)

    def call(*arguments, env_more=None):
        result = subprocess.run([path, *map(str, arguments)], capture_output=True, text=True, timeout=PATIENCE_S, env={**os.environ, **(env_more or {})})
        assert result.returncode == 0, result.stderr
        return result.stdout

    return call


@pytest.fixture(scope="session")
def python_path():
    """The interpreter that has the frameworks; jobs in tests name it in full."""
    path = VENV / "bin/python"
    if not path.exists():
        pytest.fail(f"{path} is missing: run make deps")
    return path


@pytest.fixture(scope="session")
def client_library():
    path = ROOT / "build/client/lib/libringmaster.so"
    if not path.exists():
        pytest.fail(f"{path} is not built: run make client")
    return path


@pytest.fixture
def env():
    """The environment that a job's runner gets: the virtual environment first in PATH, nothing of the caller's job."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("RINGMASTER_")}
    for name in ("TF_CONFIG", "PYTHONPATH", "VIRTUAL_ENV"):
        kept.pop(name, None)
    kept["PATH"] = f"{VENV / 'bin'}:{kept.get('PATH', '/usr/bin:/bin')}"
    kept["PYTHONDONTWRITEBYTECODE"] = "1"
    kept["TF_CPP_MIN_LOG_LEVEL"] = "2"
    kept["CUDA_VISIBLE_DEVICES"] = "-1"
    return kept


@pytest.fixture
def ringmaster(ringmaster_path, env, tmp_path):
    """ringmaster("validate", "-f", path): runs the command to its end. `env_more` adds variables, `cwd` another directory."""

    def call(*arguments, timeout_s=250, env_more=None, cwd=None, stdin=subprocess.DEVNULL):
        return subprocess.run(
            [str(ringmaster_path), *map(str, arguments)],
            env={**env, **(env_more or {})},
            cwd=cwd or tmp_path,
            stdin=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
        )

    return call


@pytest.fixture
def ringmaster_start(ringmaster_path, env, tmp_path):
    """Starts the command and returns the Popen, its output in files (`.out_path`, `.err_path`). Ended with the test."""
    started = []

    def start(*arguments, env_more=None, cwd=None):
        number = len(started)
        out_path, err_path = tmp_path / f"out-{number}", tmp_path / f"err-{number}"
        with open(out_path, "wb") as out, open(err_path, "wb") as err:
            process = subprocess.Popen(
                [str(ringmaster_path), *map(str, arguments)],
                env={**env, **(env_more or {})},
                cwd=cwd or tmp_path,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        process.out_path, process.err_path = out_path, err_path
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.fixture
def job_dir(tmp_path):
    """A job directory of this test's own; it is on a path that is short enough for unix sockets."""
    path = pathlib.Path("/tmp") / f"rm-test-{uuid.uuid4().hex[:10]}"
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def keep():
    """keep(Group(...)) gives the group back; it is closed after the test, and pytest shows its sidecars' logs when that has failed."""
    groups = []

    def remember(group):
        groups.append(group)
        return group

    yield remember
    for group in groups:
        logs = group.logs()
        group.close()
        print(logs)


@pytest.fixture
def write_job(tmp_path):
    """write_job({"Worker": (2, ["python", "train.py"])}, restartPolicy="OnFailure", **spec): a manifest in JSON, which is YAML."""

    def write(roles, name="test", env=None, **spec):
        replica_specs = {}
        for role, (replicas, command) in roles.items():
            container = {"name": "tensorflow", "image": "local", "command": [str(word) for word in command]}
            if env:
                container["env"] = [{"name": k, "value": str(v)} for k, v in env.items()]
            replica_specs[role] = {"replicas": replicas, "template": {"spec": {"containers": [container]}}}
            if "restartPolicy" in spec:
                replica_specs[role]["restartPolicy"] = spec["restartPolicy"]
        job = {
            "apiVersion": "ringmaster.dev/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"name": name},
            "spec": {"replicaSpecs": replica_specs, **{k: v for k, v in spec.items() if k != "restartPolicy"}},
        }
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(job, indent=2))
        return path

    return write
