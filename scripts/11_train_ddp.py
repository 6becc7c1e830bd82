# 11_train_ddp.py, a program of chapter 11 of Many Ranks, One Model. Generated from book/11_ddp.md.
#
# Run it: python 11_train_ddp.py
#
# pip install scikit-learn torch

import argparse
import os
from itertools import pairwise

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


options = argparse.ArgumentParser(description="DDP, a GPU for each process")
options.add_argument("--batch", type=int, default=64, help="of all ranks")
options.add_argument("--workers", type=int, default=0, help="of this host")
options.add_argument("--resume", help="a checkpoint")
options.add_argument("--save", default="trained.pt")
options.add_argument("--meet", default="tcp://127.0.0.1:29500")
options.add_argument("--hosts", type=int, default=1, help="how many")
options.add_argument("--host", type=int, default=0, help="which one this is")


def main_worker(local_rank, n_local, args):
    """Train on GPU number `local_rank` of this host, which has n_local."""
    on_gpu, device = torch.cuda.is_available(), torch.device("cpu")
    if on_gpu:
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)  # what "cuda" means from here on
    backend = "nccl" if on_gpu else "gloo"
    if "RANK" in os.environ:  # a launcher has told all: "env://"
        dist.init_process_group(backend)
    else:
        dist.init_process_group(
            backend, init_method=args.meet,
            rank=args.host * n_local + local_rank,
            world_size=args.hosts * n_local,
        )
    train(device, n_local, args)
    dist.destroy_process_group()


# From ranklab.taught.training:


def split(X, y, share=0.1, seed=0):
    """Return (train X, train y) and (test X, test y): a random share to test.

    Every sample is in exactly one of the two.
    """
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(X), generator=generator, device="cpu")
    test, train = order.tensor_split([round(share * len(X))])
    return (X[train], y[train]), (X[test], y[test])


# From ranklab.taught.sync_sgd:


def digits(seed=0):
    """Return (X, y) to train on and (X, y) to test: 1797 handwritten digits.

    X (n, 64), float32: 8 x 8 pixels, 0 to 1. y (n,), int64: the digit. A random
    fifth, drawn with `seed`, is for testing.
    """
    from sklearn.datasets import load_digits  # slow to import: only if wanted

    X, y = load_digits(return_X_y=True)
    X = torch.tensor(X / 16, dtype=torch.float32)
    return split(X, torch.tensor(y), share=0.2, seed=seed)


# From ranklab.taught.training:


class MLP(nn.Module):
    """Linear layers without bias, and tanh between them.

    sizes: of the input, of each hidden layer, and of the output.
    """

    def __init__(self, sizes, seed=0):
        super().__init__()
        self.layers = nn.ModuleList()
        for place, (n_in, n_out) in enumerate(pairwise(sizes)):
            layer = nn.Linear(n_in, n_out, bias=False, device="cpu")
            generator = torch.Generator().manual_seed(1000 * seed + place)
            nn.init.kaiming_uniform_(layer.weight, generator=generator)
            self.layers.append(layer)
        self.to(torch.get_default_device())  # drawn on the CPU, as everywhere

    def forward(self, x):
        """x: (batch, sizes[0]). Returns (batch, sizes[-1]), for each class."""
        *hidden, last = self.layers
        for layer in hidden:
            x = torch.tanh(layer(x))
        return last(x)


def train(device, n_local, args):
    """Two epochs on this rank's share of the digits."""
    batch = args.batch // dist.get_world_size()
    workers = -(-args.workers // n_local)
    (X, y), _ = digits()
    sampler = DistributedSampler(range(len(X)))
    loader = DataLoader(
        TensorDataset(X, y), batch, sampler=sampler, num_workers=workers,
        pin_memory=device.type == "cuda")
    model = MLP([64, 48, 10]).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    if args.resume:
        state = torch.load(args.resume, map_location=device)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    on_gpu = device.type == "cuda"
    replica = DDP(model, device_ids=[device.index] if on_gpu else None)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            step(replica, optimizer, inputs.to(device), labels.to(device))
    save(model, optimizer, args.save)


def step(replica, optimizer, inputs, labels):
    """One step of all ranks."""
    loss = torch.nn.functional.cross_entropy(replica(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def save(model, optimizer, path):
    """Rank 0 saves what the next run goes on with."""
    if dist.get_rank() == 0:
        state = {"model": model.state_dict()}
        torch.save(state | {"optimizer": optimizer.state_dict()}, path)
        print(f"{dist.get_world_size()} ranks have trained: {path}")


if __name__ == "__main__":
    args = options.parse_args()
    if "LOCAL_RANK" in os.environ:  # a launcher started this, as one of many
        n_local = int(os.environ["LOCAL_WORLD_SIZE"])
        main_worker(int(os.environ["LOCAL_RANK"]), n_local, args)
    else:  # started once on this host: the others begin here
        n_local = torch.cuda.device_count() or 2
        mp.spawn(main_worker, (n_local, args), n_local)
