"""What `ringmaster run` cannot run, or not now: it says so in words, and leaves nothing."""

import json
import os
import pathlib
import re
import socket
import subprocess

import pytest
from conftest import PATIENCE_S
from local_job import SH, WRONG, log_of, no_memory_left, running  # noqa: F401 (a fixture)


@pytest.mark.parametrize(
    "text,expected",
    [
        ("a: [1, 2\nb: 3\n", "bad.yaml:2:"),
        ("", "is empty; expected a TrainingJob"),
        ("kind: Pod\napiVersion: v1\n", "kind: found \"Pod\", expected TrainingJob"),
        ("a: &a [*a]\n", "bad.yaml:1:"),
        ("kind: TrainingJob\n---\nkind: TrainingJob\n", "a second TrainingJob; give each a file of its own"),
    ],
)
def test_a_file_that_is_no_manifest(ringmaster, tmp_path, job_dir, text, expected):
    (tmp_path / "bad.yaml").write_text(text)
    result = ringmaster("run", "-f", "bad.yaml", "--job-dir", job_dir)
    assert result.returncode == 2 and expected in result.stderr, result.stderr
    assert not job_dir.exists(), "nothing is made for a manifest that is wrong"


@pytest.mark.parametrize("command", ["run", "validate", "render"])
def test_every_problem_is_told_with_its_place(ringmaster, tmp_path, command):
    (tmp_path / "wrong.yaml").write_text(WRONG)
    result = ringmaster(command, "-f", "wrong.yaml")
    assert result.returncode == 2
    assert 'wrong.yaml:6:3: spec.runPolcy: unknown field; did you mean "runPolicy"?' in result.stderr
    assert "wrong.yaml:9:7: spec.replicaSpecs.Worker.replicas: " in result.stderr
    assert result.stderr.count("runPolcy") == 1, "each problem is told once"
    assert result.stderr.endswith(f"ringmaster {command}: the manifest cannot be used: 2 problems\n")
    assert not (tmp_path / "ringmaster-jobs").exists()


def test_a_manifest_that_is_not_there(ringmaster):
    result = ringmaster("run", "-f", "nowhere.yaml")
    assert result.returncode == 2 and "nowhere.yaml" in result.stderr


@pytest.mark.parametrize("name", ["Bad_Name", "9lives", "a" * 52])
def test_a_name_that_no_job_can_have(ringmaster, tmp_path, name):
    result = ringmaster("run", "-np", "1", "--name", name, "--", "true")
    assert result.returncode == 2 and f"--name {name}: at most 51 " in result.stderr
    assert not (tmp_path / "ringmaster-jobs").exists()


def test_a_container_without_a_command(ringmaster, tmp_path, job_dir):
    job = {
        "apiVersion": "ringmaster.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "bare"},
        "spec": {"replicaSpecs": {"Worker": {"replicas": 1, "template": {"spec": {"containers": [{"name": "m", "image": "x"}]}}}}},
    }
    (tmp_path / "bare.json").write_text(json.dumps(job))
    result = ringmaster("run", "-f", "bare.json", "--job-dir", job_dir)
    assert result.returncode == 2
    assert "spec.replicaSpecs.Worker.template.spec.containers[0].command: missing" in result.stderr


def test_a_report_that_cannot_be_written_is_told_before_the_job_runs(ringmaster, tmp_path, job_dir):
    (tmp_path / "taken").write_text("a file")
    result = ringmaster("run", "-np", "1", "--job-dir", job_dir, "--report", tmp_path / "taken/report", "--", "touch", "ran")
    assert result.returncode == 3 and f"--report: make directory {tmp_path}/taken" in result.stderr, result.stderr
    assert not (tmp_path / "ran").exists()


def test_a_job_directory_that_cannot_be_made(ringmaster, tmp_path):
    (tmp_path / "taken").write_text("a file")
    result = ringmaster("run", "-np", "1", "--job-dir", tmp_path / "taken/job", "--", "true")
    assert result.returncode == 3 and f"{tmp_path}/taken/job cannot be made, choose another with --job-dir" in result.stderr


def test_a_working_directory_that_is_not_there(ringmaster, write_job, tmp_path, job_dir):
    job = json.loads(write_job({"Worker": (1, ["true"])}).read_text())
    job["spec"]["replicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["workingDir"] = "/no/such/place"
    (tmp_path / "wd.json").write_text(json.dumps(job))
    result = ringmaster("run", "-f", "wd.json", "--job-dir", job_dir)
    assert result.returncode == 2 and "workingDir /no/such/place" in result.stderr


def test_a_suspended_job_says_so(ringmaster, write_job, job_dir):
    result = ringmaster("run", "-f", write_job({"Worker": (1, ["true"])}, suspend=True), "--job-dir", job_dir)
    assert result.returncode == 3 and "spec.suspend is true" in result.stderr


def test_a_ring_port_in_use_names_its_holder(ringmaster, write_job, job_dir):
    with socket.create_server(("0.0.0.0", 0)) as held:
        port = held.getsockname()[1]
        result = ringmaster("run", "-f", write_job({"Worker": (2, ["true"])}), "--job-dir", job_dir, "--ring-port", port)
    assert result.returncode == 3
    assert re.search(rf"ring port {port} on 127\.1\.\d+\.1 is in use by pid {os.getpid()} ", result.stderr), result.stderr
    assert "--ring-port" in result.stderr


def test_a_framework_port_in_use(ringmaster, write_job, job_dir):
    script = 'echo "$TF_CONFIG"'
    with socket.create_server(("0.0.0.0", 0)) as held:
        port = held.getsockname()[1]
        job = write_job({"Worker": (2, [SH, "-c", script])}, tfConfig={"port": port})
        fixed = ringmaster("run", "-f", job, "--job-dir", job_dir, "--framework-port", port)
        assert fixed.returncode == 3 and f"pid {os.getpid()}" in fixed.stderr and "--framework-port" in fixed.stderr
        moved = ringmaster("run", "-f", job, "--job-dir", job_dir)
    assert moved.returncode == 0, moved.stderr
    assert json.loads(log_of(job_dir, "worker-0"))["cluster"]["worker"][0].endswith(f".1:{port + 100}")


def test_two_jobs_at_once(ringmaster_start, write_job, job_dir, tmp_path, wait_for):
    """Each has its own addresses and ports; neither waits for the other."""
    a, b = tmp_path / "a", tmp_path / "b"
    script = 'echo "$TF_CONFIG"; while [ ! -e "$GO" ]; do sleep 0.05; done'
    job = write_job({"Worker": (2, [SH, "-c", script])}, env={"GO": tmp_path / "go"})
    runners = [ringmaster_start("run", "-f", job, "--job-dir", d) for d in (a, b)]
    wait_for(running(a, "worker-0", "worker-1"), what="the first runs")
    wait_for(running(b, "worker-0", "worker-1"), what="the second runs, too")
    (tmp_path / "go").touch()
    assert [r.wait(PATIENCE_S) for r in runners] == [0, 0]
    workers = [json.loads(log_of(d, "worker-0"))["cluster"]["worker"] for d in (a, b)]
    assert not set(workers[0]) & set(workers[1])
    assert not {w.split(":")[1] for w in workers[0]} & {w.split(":")[1] for w in workers[1]}


def on_small_disk(command, mount_point, size="256k"):
    """The command with a small tmpfs at mount_point, in a mount namespace of its own."""
    own_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    script = f'mount -t tmpfs -o size={size} none "$0" && exec "$@"'
    return ["unshare", *own_root, "--mount", SH, "-c", script, str(mount_point), *map(str, command)]


def test_a_full_disk_in_the_job_directory(ringmaster_path, env, write_job, job_dir, tmp_path, processes):
    job_dir.mkdir()
    before = set(pathlib.Path("/dev/shm").glob("ringmaster-*"))
    script = "while :; do echo 0123456789012345678901234567890123456789012345678901234567890123456789; done"
    job = write_job({"Worker": (2, [SH, "-c", script])})
    command = [ringmaster_path, "run", "-f", job, "--job-dir", job_dir, "--no-logs"]
    result = subprocess.run(on_small_disk(command, job_dir), env=env, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S)
    assert result.returncode == 3, result.stdout + result.stderr
    assert "No space left on device" in result.stderr and str(job_dir) in result.stderr
    assert f"continue with: ringmaster run --resume --job-dir {job_dir}\n" in result.stderr
    assert not processes()
    for kept in set(pathlib.Path("/dev/shm").glob("ringmaster-*")) - before:
        if not (kept / "run").exists():  # another test's job, running beside this one, has its sockets there
            assert sum(f.stat().st_size for f in kept.rglob("*") if f.is_file()) < 65536, "no slots were made: little is kept"
            subprocess.run(["rm", "-rf", str(kept)], check=True)


def test_a_disk_that_is_full_from_the_start(ringmaster_path, env, write_job, job_dir, tmp_path):
    job_dir.mkdir()
    command = [SH, "-c", 'head -c 1000000 /dev/zero >"$0/fill" 2>/dev/null; exec "$@"', job_dir, ringmaster_path, "run", "-f",
               write_job({"Worker": (2, ["true"])}), "--job-dir", job_dir]
    result = subprocess.run(on_small_disk(command, job_dir), env=env, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S)
    assert result.returncode == 3 and "No space left on device" in result.stderr, result.stderr


def test_programs_that_are_missing(ringmaster, write_job, job_dir, tmp_path):
    result = ringmaster("run", "-f", write_job({"Worker": (1, ["true"])}), "--job-dir", job_dir, "--install-dir", tmp_path)
    assert result.returncode == 3
    assert f"{tmp_path}/bin/ringmaster-launch is missing" in result.stderr and "--install-dir" in result.stderr


def test_a_sidecar_that_cannot_start_ends_the_run_with_words(ringmaster, write_job, job_dir, tmp_path, launch_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/ringmaster-launch").symlink_to(launch_path)
    sidecar = tmp_path / "bin/ringmaster-sidecar"
    sidecar.write_text("#!/bin/sh\necho broken >&2\nexit 3\n")
    sidecar.chmod(0o755)
    result = ringmaster("run", "-f", write_job({"Worker": (1, ["true"])}), "--job-dir", job_dir, "--install-dir", tmp_path)
    assert result.returncode == 3, result.stdout
    assert "the sidecar of worker-0 ended" in result.stderr and "sidecar.log" in result.stderr
    assert "broken" in (job_dir / "logs/worker-0/sidecar.log").read_text()
