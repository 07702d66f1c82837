"""What `ringmaster run` prints, and what the other commands show of a job of this machine."""

import json
import os
import re
import subprocess

import pytest
from conftest import PATIENCE_S
from local_job import SH, WRONG, log_of, no_memory_left, running, status_of  # noqa: F401 (a fixture)

# ---- what is printed ---------------------------------------------------------------------------------------------------------------


def on_a_terminal(command, env, cwd, columns=100):
    """Runs the command on a pseudo-terminal; returns exit code and all that it put there."""
    import fcntl
    import pty
    import struct
    import termios

    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
    process = subprocess.Popen(list(map(str, command)), env=env, cwd=cwd, stdin=child, stdout=child, stderr=child, start_new_session=True)
    os.close(child)
    output = b""
    while True:
        try:
            piece = os.read(parent, 65536)
        except OSError:
            break
        if not piece:
            break
        output += piece
    os.close(parent)
    return process.wait(PATIENCE_S), output.decode(errors="replace")


@pytest.mark.parametrize(
    "variables,arguments,live,color",
    [
        ({"TERM": "xterm"}, [], True, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, [], True, False),
        ({"TERM": "xterm"}, ["--no-color"], True, False),
        ({"TERM": "xterm"}, ["--plain"], False, True),
        ({"TERM": "dumb"}, [], False, False),
    ],
)
def test_the_live_view(ringmaster_path, env, write_job, job_dir, tmp_path, variables, arguments, live, color):
    job = write_job({"Worker": (2, [SH, "-c", "echo hello from $RINGMASTER_RANK; sleep 1"])})
    env.pop("NO_COLOR", None)
    code, text = on_a_terminal([ringmaster_path, "run", "-f", job, "--job-dir", job_dir, *arguments], {**env, **variables}, tmp_path)
    assert code == 0, text
    assert "hello from 1" in text and "test Succeeded" in text.replace("\033[0m", "").replace("\033[1;32m", "")
    assert ("MEMBER" in text) == live
    assert ("\033[J" in text) == live, "the picture is drawn over"
    assert ("\033[0m" in text) == color
    assert text.count("\033[?25l") == text.count("\033[?25h") - (1 if live else 0), "the cursor is given back"


def test_quiet(ringmaster, write_job, job_dir):
    result = ringmaster("run", "-q", "-f", write_job({"Worker": (1, [SH, "-c", "echo noise"])}), "--job-dir", job_dir)
    assert result.returncode == 0 and "noise" not in result.stdout and "test Succeeded" in result.stdout
    assert log_of(job_dir, "worker-0") == "noise\n"


def test_a_reader_that_goes_away_does_not_end_the_job(ringmaster_path, env, write_job, job_dir, tmp_path):
    job = write_job({"Worker": (1, [SH, "-c", "for i in 1 2 3 4 5; do echo line $i; sleep 0.1; done"])})
    runner = subprocess.Popen([str(ringmaster_path), "run", "-f", str(job), "--job-dir", str(job_dir)], env=env, cwd=tmp_path,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    runner.stdout.close()
    assert runner.wait(PATIENCE_S) == 0
    runner.stderr.close()
    assert status_of(job_dir)["phase"] == "Succeeded"


# ---- the other commands --------------------------------------------------------------------------------------------------------------


def test_status_and_logs(ringmaster, write_job, job_dir):
    job = write_job({"Worker": (2, [SH, "-c", "echo one; echo two >&2"])})
    assert ringmaster("run", "-f", job, "--job-dir", job_dir).returncode == 0
    text = ringmaster("status", "--job-dir", job_dir)
    assert text.returncode == 0 and "Succeeded" in text.stdout and "worker-1" in text.stdout and "done" in text.stdout
    as_json = ringmaster("status", "--job-dir", job_dir, "-o", "json")
    assert json.loads(as_json.stdout)["phase"] == "Succeeded"
    assert ringmaster("logs", "--job-dir", job_dir, "worker-1").stdout == "one\ntwo\n"
    assert "[worker-0] one\n" in ringmaster("logs", "--job-dir", job_dir).stdout
    assert ringmaster("logs", "--job-dir", job_dir, "-f").returncode == 0, "a job that is over is followed to its end at once"
    assert ringmaster("logs", "--job-dir", job_dir, "--sidecar", "worker-0").returncode == 0
    wrong = ringmaster("logs", "--job-dir", job_dir, "worker-5")
    assert wrong.returncode == 2 and 'did you mean "worker-' in wrong.stderr
    assert ringmaster("status", "--job-dir", job_dir / "nowhere").returncode == 3


def test_logs_follow(ringmaster_start, write_job, job_dir, wait_for, tmp_path):
    script = 'echo first; while [ ! -e "$GO" ]; do sleep 0.05; done; echo last'
    job = write_job({"Worker": (1, [SH, "-c", script])}, env={"GO": tmp_path / "go"})
    runner = ringmaster_start("run", "-f", job, "--job-dir", job_dir)
    wait_for(running(job_dir, "worker-0"), what="the job runs")
    follower = ringmaster_start("logs", "--job-dir", job_dir, "-f", "worker-0")
    wait_for(lambda: follower.out_path.read_text() == "first\n", what="the first line")
    (tmp_path / "go").touch()
    assert runner.wait(PATIENCE_S) == 0 and follower.wait(PATIENCE_S) == 0
    assert follower.out_path.read_text() == "first\nlast\n"


def test_validate(ringmaster, write_job, tmp_path):
    good = write_job({"Chief": (1, ["true"]), "Worker": (3, ["true"])}, name="good")
    result = ringmaster("validate", "-f", good)
    assert result.returncode == 0
    assert result.stdout == f"{good}: TrainingJob good is valid: 4 replicas, ring of 4\n"
    (tmp_path / "wrong.yaml").write_text(WRONG)
    both = ringmaster("validate", good, "wrong.yaml")
    assert both.returncode == 2 and "good is valid" in both.stdout and "runPolcy" in both.stderr


def test_render(ringmaster, write_job):
    job = write_job({"Chief": (1, ["true"]), "Worker": (2, ["python", "train.py"])}, name="shown")
    items = json.loads(ringmaster("render", "-f", job, "-o", "json").stdout)["items"]
    assert [f"{i['kind']}/{i['metadata']['name']}" for i in items] == [
        "Service/shown", "Pod/shown-chief-0", "Pod/shown-worker-0", "Pod/shown-worker-1"]
    main = items[3]["spec"]["containers"][0]
    assert main["command"] == ["/ringmaster/bin/ringmaster-launch", "--", "python", "train.py"]
    documents = ringmaster("render", "-f", job).stdout.split("---\n")
    assert len(documents) == 4 and all(d.startswith("apiVersion: v1\n") for d in documents)
    assert ringmaster("render", "-f", job, "--tf-config", "worker:1").stdout == (
        '{"cluster":{"chief":["shown-chief-0.shown.default.svc:2222"],"worker":["shown-worker-0.shown.default.svc:2222",'
        '"shown-worker-1.shown.default.svc:2222"]},"task":{"type":"worker","index":1},"environment":"cloud"}\n')
    assert ringmaster("render", "-f", job, "--tf-config", "chief:0", "--local").stdout == (
        '{"cluster":{"chief":["127.1.0.1:2222"],"worker":["127.1.0.2:2223","127.1.0.3:2224"]},'
        '"task":{"type":"chief","index":0},"environment":"cloud"}\n')
    wrong = ringmaster("render", "-f", job, "--tf-config", "worker:7")
    assert wrong.returncode == 2 and "the job has 2 replicas of Worker" in wrong.stderr


COMMANDS = ["run", "submit", "status", "logs", "events", "wait", "suspend", "resume", "checkpoint", "scale", "delete", "validate", "render", "convert",
            "bench", "timeline", "completion", "version"]


@pytest.mark.parametrize("command", COMMANDS)
def test_help(ringmaster, command):
    page = ringmaster(command, "--help")
    assert page.returncode == 0 and page.stdout.startswith(f"Usage: ringmaster {command}")
    assert "Exit codes:" in page.stdout or command in ("completion", "version")
    assert ringmaster("help", command).stdout == page.stdout


def test_the_front_page_and_words_that_are_none(ringmaster):
    front = ringmaster("--help")
    assert re.findall(r"^  ([a-z]+) +\S", front.stdout.split("Commands:")[1].split("Examples:")[0], re.M) == [*COMMANDS, "help"]
    assert front.returncode == 0 and "Exit codes:" in front.stdout
    assert ringmaster().returncode == 2
    wrong = ringmaster("vlidate")
    assert wrong.returncode == 2 and 'did you mean "validate"?' in wrong.stderr
    assert ringmaster("version").stdout.startswith("ringmaster ")


def test_the_manual_page_is_clean(root):
    result = subprocess.run(["mandoc", "-Tlint", str(root / "docs/man/ringmaster.1")], capture_output=True, text=True)
    assert result.returncode == 0 and result.stdout == "", result.stdout


def test_the_manual_names_every_option_of_run(ringmaster, root):
    """A new option belongs into the manual page and the reference, too."""
    page = ringmaster("run", "--help").stdout.split("horovodrun's options")[0]
    manual = (root / "docs/man/ringmaster.1").read_text()
    for option in re.findall(r"--([a-z][a-z-]+)", page.split("Options:")[1]):
        if option in ("help", "no-logs", "no-color"):
            continue
        assert re.search(rf"Fl Fl (no-)?{option}\b", manual), f"--{option} is not in the manual page"
