"""Trains with ringmaster.torch: gradients over the ring, checkpoints that survive the death of any rank, progress for the live view.

    ringmaster run -f examples/pytorch/trainingjob.yaml

A run that lost a rank ends with the very weights of a run that did not: the data of a step follow from its number and the rank, and the
random generators (there is dropout) are saved with the state.
"""

import argparse
import hashlib
import os
import signal
import time

import ringmaster.torch as rm
import torch
import torch.nn.functional as F
from ringmaster.torch import checkpoint
from spirals import network, spirals


def weights_hash(model):
    digest = hashlib.sha256()
    for value in model.state_dict().values():
        digest.update(value.cpu().numpy().tobytes())
    return digest.hexdigest()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--save-every", type=int, help="a checkpoint every so many steps; as the job says when it is left out")
    parser.add_argument("--lose-rank", type=int, default=-1, help="this rank kills itself once, in the middle")
    args = parser.parse_args()

    rm.init()
    torch.manual_seed(1 + rm.rank())
    torch.set_num_threads(1)
    dataset = spirals()
    model = network()
    rm.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    optimizer = rm.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, args.steps // 3, 0.5)

    saver = checkpoint.Checkpoint(every_steps=args.save_every, model=model, optimizer=optimizer, scheduler=scheduler)
    begin = saver.restore()
    if begin:
        print(f"rank {rm.rank()} goes on after step {begin}", flush=True)
    for step in range(begin, args.steps):
        started = time.perf_counter()
        generator = torch.Generator().manual_seed(step * rm.size() + rm.rank())
        points, arms = dataset[torch.randint(0, len(dataset), (args.batch_size,), generator=generator)]
        optimizer.zero_grad()
        loss = F.cross_entropy(model(points), arms)
        loss.backward()
        optimizer.step()
        scheduler.step()
        if rm.rank() == args.lose_rank and step == args.steps // 2 and os.environ.get("RINGMASTER_ROUND") == "1":
            checkpoint.wait(30)  # so that there is one to come back to
            os.kill(os.getpid(), signal.SIGKILL)
        saver.step(step + 1)
        rm.report(step=step + 1, total_steps=args.steps, loss=loss.item(), step_ms=1000 * (time.perf_counter() - started))

    model.eval()
    with torch.no_grad():
        accuracy = (model(dataset.tensors[0]).argmax(1) == dataset.tensors[1]).float().mean().item()
    rm.report(metrics={"accuracy": accuracy, "weights_hash": weights_hash(model)})
    print(f"rank {rm.rank()} of {rm.size()}: accuracy {accuracy:.3f} weights {weights_hash(model)}", flush=True)


if __name__ == "__main__":
    main()
