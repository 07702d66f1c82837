"""A PyTorch script for Horovod, which knows nothing of Ringmaster. In a job with `frameworks: [Horovod]`, or under `ringmaster run -np`,
`horovod.torch` is Ringmaster's.

    ringmaster run -np 2 -- python examples/pytorch/train_horovod.py
"""

import argparse

import horovod.torch as hvd
import torch
import torch.nn.functional as F
from spirals import network, spirals


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--fp16-allreduce", action="store_true", help="gradients travel as float16")
    parser.add_argument("--use-adasum", action="store_true")
    args = parser.parse_args()

    hvd.init()
    torch.manual_seed(42 + hvd.rank())
    torch.set_num_threads(1)
    if torch.cuda.is_available():
        torch.cuda.set_device(hvd.local_rank())
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    # Each rank sees its own part of the data.
    dataset = spirals()
    sampler = torch.utils.data.distributed.DistributedSampler(dataset, num_replicas=hvd.size(), rank=hvd.rank())
    loader = torch.utils.data.DataLoader(dataset, batch_size=args.batch_size, sampler=sampler)

    model = network().to(device)
    # The batch of a step is that of all ranks: so is the rate. Adasum scales by itself.
    scale = 1 if args.use_adasum else hvd.size()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * scale, momentum=0.9)

    # Everyone begins with what rank 0 has.
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
        op=hvd.Adasum if args.use_adasum else hvd.Average,
    )

    for epoch in range(args.epochs):
        model.train()
        sampler.set_epoch(epoch)
        for points, arms in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(points.to(device)), arms.to(device))
            loss.backward()
            optimizer.step()

        model.eval()
        with torch.no_grad():
            points, arms = dataset[hvd.rank() :: hvd.size()]
            right = (model(points.to(device)).argmax(1) == arms.to(device)).float().mean()
        accuracy = hvd.allreduce(right, name="accuracy").item()
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}: accuracy {accuracy:.3f}", flush=True)


if __name__ == "__main__":
    main()
