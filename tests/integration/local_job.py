"""What tests of `ringmaster run` ask about a job directory."""

import json
import pathlib
import subprocess

import pytest

SH = "/bin/sh"
SELF = "$$$$"  # Kubernetes reads "$$" in a command as "$"

# A manifest with several mistakes.
WRONG = """apiVersion: ringmaster.dev/v1alpha1
kind: TrainingJob
metadata:
  name: wrong
spec:
  runPolcy: {}
  replicaSpecs:
    Worker:
      replicas: four
      template:
        spec:
          containers:
          - name: main
            image: local
            command: [train]
"""


def status_of(job_dir):
    return json.loads((job_dir / "status.json").read_text())


def report_of(job_dir):
    return json.loads((job_dir / "report.json").read_text())


def state_of(job_dir, member):
    return json.loads((job_dir / "pods" / member / "state.json").read_text())


def log_of(job_dir, member, attempt=1):
    return (job_dir / "logs" / member / f"{attempt}.log").read_text()


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def shared_memory_of(job_dir):
    uid = json.loads((job_dir / "job.json").read_text())["metadata"]["uid"]
    return pathlib.Path(f"/dev/shm/ringmaster-{uid}")


@pytest.fixture(autouse=True)
def no_memory_left(job_dir):
    """Jobs that a test leaves to be resumed keep memory for their slots: it is given back here."""
    yield
    if (job_dir / "job.json").exists():
        subprocess.run(["rm", "-rf", str(shared_memory_of(job_dir))], check=True)


def running(job_dir, *members):
    """True when all the members' training processes run."""

    def look():
        try:
            return all(state_of(job_dir, m)["trainer_pid"] > 0 for m in members)
        except (FileNotFoundError, json.JSONDecodeError):
            return False

    return look
