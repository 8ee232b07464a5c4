"""Users over many processes or machines: each reads its own shard, all get the same released values.
There is no free choice: no user's record is public.

torchrun --standalone --nproc-per-node 4 -m examples.many_machines                                             # on this machine
torchrun --nnodes 8 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint HOST:29400 -m examples.many_machines   # on each of eight
"""

import argparse

import torch
import torch.distributed as dist

from dpbo import DPGIBO, Adjacency, Budget, Curator, PrivacyUnit, Ranks
from dpbo.papers.em import DPGaussianMixture

D = 4


def shard(ranks: Ranks, records: int) -> torch.Tensor:
    """This rank's users, each on one rank: here made up by their numbers, elsewhere read from this rank's own files."""
    user = torch.arange(ranks.rank, records, ranks.world_size, dtype=torch.float64)
    return torch.stack([0.3 + 0.2 * torch.sin(user * (k + 1)) + 0.1 * (user % 2) for k in range(D)], dim=1)


def loss(x: torch.Tensor, users: torch.Tensor) -> torch.Tensor:
    """How far x is from what each user would like."""
    return (users - x).abs().mean(1)


def main(records: int) -> None:
    dist.init_process_group("gloo")  # "cpu:gloo,cuda:nccl" for shards on GPUs
    ranks = Ranks()
    curator = Curator(
        shard(ranks, records), unit=PrivacyUnit("user"), adjacency=Adjacency.REPLACE_ONE, budget=Budget(1.0, 1e-6), ranks=ranks
    )
    box = torch.tensor([[0.0] * D, [1.0] * D], dtype=torch.float64)
    found = DPGIBO(curator, loss, bounds=box, budget=0.5, iterations=20, batch_size=D + 1, clip=1.0).run()
    mixture = DPGaussianMixture(2, budget=0.5, radius=2.0, dimension=D, max_iter=5, random_state=0).fit(curator)

    mine = torch.cat([found.x, torch.from_numpy(mixture.means_).flatten()])
    everyone = [torch.empty_like(mine) for _ in range(ranks.world_size)]
    dist.all_gather(everyone, mine)  # released values: public, unlike anything else here
    if ranks.rank == 0:
        print("x:", found.x.tolist())
        print("means:", mixture.means_.tolist())
        print("all four ranks agree:", all(torch.equal(mine, other) for other in everyone))
        print(curator.statement())
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=200_000)
    main(parser.parse_args().records)
