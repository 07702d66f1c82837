"""A checkpoint that the job dies of: an older one is taken, and nothing is deleted."""

import json
import sys

PROGRAM = """
import numpy
import ringmaster as rm
from ringmaster import checkpoint
rm.init()
restored = checkpoint.restore()
at = restored.step if restored else 0
print("began at", at, flush=True)
if at == 2 and rm.rank() == 1:
    raise SystemExit("the weights are not finite")
for step in range(at + 1, 5):
    rm.allreduce(numpy.ones(2, "float32"))
    rm.report(step=step)
    if step <= 2 or at:
        checkpoint.save(step, {"w": numpy.full(9, step, "float32")}, {})
        checkpoint.wait(90)
    elif rm.rank() == 0:
        raise SystemExit(1)
"""


def test_after_three_crashes_right_after_a_restore_an_older_checkpoint_is_taken(ringmaster, write_job, job_dir, tmp_path, client_library):
    """The first process saves steps 1 and 2 and ends with an error; every process that is restored from 2 dies at once."""
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    command = ["/bin/sh", "-c", f'exec {sys.executable} {program}']
    job = write_job({"Worker": (2, command)}, failurePolicy={"backoffBaseSeconds": 0}, restartPolicy="OnFailure",
                    checkpoint={"enabled": True, "keepLast": 5})
    result = ringmaster("run", "-f", job, "--job-dir", job_dir)
    assert result.returncode == 0, result.stdout + result.stderr
    began = [line.rpartition(" ")[2] for line in (job_dir / "logs/worker-1/1.log").read_text().splitlines() if line.startswith("began at")]
    assert began == ["0", "2", "2", "2", "1"]
    assert "restored from step 2; it goes on from step 1, and step 2 is kept" in result.stdout
    status = json.loads((job_dir / "status.json").read_text())
    assert status["restarts"] == 4
    shown = ringmaster("checkpoint", "ls", job_dir / "checkpoints")  # and not the status: a job may end before its last commit was told
    steps = [line.split()[0] for line in shown.stdout.splitlines() if line.strip()]
    assert shown.returncode == 0 and steps.count("2") == 2 and "4" in steps, shown.stdout
