"""Users over many processes or machines: each reads its own shard, all get the same released
values. There is no free choice: no user's record is public.

# on this machine; with GPUs one process for each
torchrun --standalone --nproc-per-node 4 -m examples.many_machines
# I-th of eight
torchrun --nnodes 8 --node-rank I --master-addr HOST --master-port 29400 --nproc-per-node 4 -m
examples.many_machines
"""

import argparse
import os

import torch
import torch.distributed as dist

from dpbo import DPGIBO, Adjacency, Budget, Curator, PrivacyUnit, Ranks
from dpbo.papers.em import DPGaussianMixture

D = 4


def shard(ranks: Ranks, records: int) -> torch.Tensor:
    """This rank's users, each on one rank: here made up by their numbers, elsewhere read from this
    rank's own files.
    """
    user = torch.arange(ranks.rank, records, ranks.world_size, dtype=torch.float64)
    return torch.stack(
        [0.3 + 0.2 * torch.sin(user * (k + 1)) + 0.1 * (user % 2) for k in range(D)], dim=1
    )


def loss(x: torch.Tensor, users: torch.Tensor) -> torch.Tensor:
    """How far x is from what each user would like."""
    return (users - x.to(users)).abs().mean(1)


def main(records: int) -> None:
    # one for each process of this machine
    gpu = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    if gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if gpu else "gloo")
    ranks = Ranks()
    users = shard(ranks, records)
    curator = Curator(
        users.cuda() if gpu else users,
        unit=PrivacyUnit("user"),
        adjacency=Adjacency.REPLACE_ONE,
        budget=Budget(1.0, 1e-6),
        ranks=ranks,
    )
    box = torch.tensor([[0.0] * D, [1.0] * D], dtype=torch.float64)
    found = DPGIBO(
        curator, loss, bounds=box, budget=0.5, iterations=20, batch_size=D + 1, clip=1.0
    ).run()
    mixture = DPGaussianMixture(
        2, budget=0.5, radius=2.0, dimension=D, max_iter=5, random_state=0
    ).fit(curator)

    mine = torch.cat([found.x, torch.from_numpy(mixture.means_).flatten()])
    everyone = [torch.empty_like(mine) for _ in range(ranks.world_size)]
    dist.all_gather(everyone, mine)  # released values: public, unlike anything else here
    if ranks.rank == 0:
        print("x:", found.x.tolist())
        print("means:", mixture.means_.tolist())
        print("all ranks agree:", all(torch.equal(mine, other) for other in everyone))
        print(curator.statement())
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=200_000)
    main(parser.parse_args().records)
