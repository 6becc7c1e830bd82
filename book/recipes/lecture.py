"""A lecture: the same program on every laptop, with ranks that it can take."""

import os

os.environ["RANKLAB_RANKS"] = "2"  # wherever a notebook says Ranks(4)

from ranklab import Ranks


def student():  # what a student wrote: the mean over all ranks
    import torch
    import torch.distributed as dist

    x = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(x)
    return (x / dist.get_world_size()).item()


if __name__ == "__main__":
    with Ranks(4, backend="gloo", device="cpu") as ranks:
        came = ranks.run(student)
        wanted = [(len(ranks) - 1) / 2] * len(ranks)
        print("right" if came == wanted else f"{came}, and not {wanted}")
