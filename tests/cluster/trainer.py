"""A training program without a framework: numpy, one all-reduce a step, checkpoints. What it computes is known in advance, so that
a step that was trained twice, or skipped, or restored from another state shows in the last number.

    trainer.py STEPS EVERY PAUSE_S DIRECTORY

Each rank appends what it does to DIRECTORY/<role>-<index>.jsonl: one line an event, with the time of the machine.
"""

import json
import os
import sys
import time

WIDTH = 50_000


def gradient(step, rank):
    """A whole number: sums of them are exact in any order."""
    return (step * 31 + rank * 7) % 101


def expected(steps, size):
    return sum(gradient(step, rank) for step in range(steps) for rank in range(size))


def main():
    import numpy as np
    import ringmaster as rm  # in the pod; whoever checks the results has neither
    from ringmaster import checkpoint

    steps, every, pause, directory = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
    member = f"{os.environ['RINGMASTER_ROLE']}-{os.environ['RINGMASTER_INDEX']}"
    log = open(os.path.join(directory, f"{member}.jsonl"), "a", buffering=1)  # noqa: SIM115 (until the process ends, however it ends)

    def tell(what, **more):
        where = {key: int(os.environ[f"RINGMASTER_{key.upper()}"]) for key in ("attempt", "round")}
        log.write(json.dumps({"what": what, "time": time.time(), "pid": os.getpid(), **where, **more}) + "\n")

    tell("started")
    rm.init()
    found = checkpoint.restore()
    weights = found.tensors["weights"].copy() if found else np.zeros(WIDTH)
    begin = found.step if found else 0
    tell("resumed" if found else "scratch", step=begin, value=float(weights[0]))
    for step in range(begin, steps):
        weights += rm.allreduce(np.full(WIDTH, float(gradient(step, rm.rank()))), op=rm.Sum, name="gradient")
        tell("step", step=step + 1)
        rm.report(step=step + 1, total_steps=steps, loss=1.0 / (step + 1))
        if (step + 1) % every == 0 and checkpoint.save(step + 1, {"weights": weights}):
            tell("saved", step=step + 1)
        time.sleep(pause)
    checkpoint.wait(60)
    right = bool((weights == expected(steps, rm.size())).all())
    tell("ended", step=steps, value=float(weights[0]), right=right)
    rm.shutdown()
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
