"""`make install` lays out what docs/install.md says, and what is installed runs from there."""

import os
import shutil
import subprocess

import pytest
from conftest import PATIENCE_S

INSTALLED = [
    "bin/ringmaster",
    "bin/ringmaster-sidecar",
    "bin/ringmaster-launch",
    "include/ringmaster.h",
    "lib/ringmaster/libringmaster.so",
    "lib/ringmaster/libringmaster_tf.so",
    "share/ringmaster/python/ringmaster/__init__.py",
    "share/ringmaster/crd/trainingjob.yaml",
    "share/man/man1/ringmaster.1",
]


def make(root, *arguments):
    env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "VARIANT", "BUILD")}
    result = subprocess.run(["make", "--no-print-directory", *arguments], cwd=root, env=env, capture_output=True, text=True, timeout=280)
    assert result.returncode == 0, result.stdout + result.stderr


def files_below(directory):
    return sorted(str(p.relative_to(directory)) for p in directory.rglob("*") if p.is_file())


@pytest.fixture
def staged(root, tmp_path):
    make(root, "install", f"DESTDIR={tmp_path}", "PREFIX=/opt/ringmaster")
    return tmp_path / "opt/ringmaster"


def test_everything_is_there(staged):
    there = files_below(staged)
    assert [p for p in INSTALLED if p not in there] == []
    assert not [p for p in there if p.endswith((".pyc", ".stamp"))]


def test_an_installed_job_runs(staged, env, tmp_path, write_job, job_dir, python_path):
    """From its prefix, with nothing of the build directory: the runner finds sidecar, launcher, library and package."""
    program = "import ringmaster as rm; rm.init(); rm.barrier(); print('rank', rm.rank(), 'of', rm.size(), rm.__file__)"
    job = write_job({"Worker": (2, [python_path, "-c", program])})
    command = [str(staged / "bin/ringmaster"), "run", "-f", str(job), "--job-dir", str(job_dir)]
    result = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=280)
    assert result.returncode == 0, result.stdout + result.stderr
    for rank in (0, 1):
        assert f"rank {rank} of 2 {staged}/share/ringmaster/python/ringmaster/__init__.py" in result.stdout + result.stderr


def test_uninstall_leaves_nothing(root, staged, tmp_path):
    make(root, "uninstall", f"DESTDIR={tmp_path}", "PREFIX=/opt/ringmaster")
    assert files_below(staged) == []


def test_the_launcher_needs_no_library(staged):
    """It is copied into the user's container, whatever that has."""
    if shutil.which("ldd") is None:
        pytest.fail("ldd is missing")
    result = subprocess.run(["ldd", str(staged / "bin/ringmaster-launch")], capture_output=True, text=True, timeout=PATIENCE_S)
    assert "not a dynamic executable" in result.stdout + result.stderr or "statically linked" in result.stdout
