# Generated from book/11_ddp.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: c9c5eb0443ba).
#
# === One training loop, many ranks ====================================================
#
# Fill in, about 20 minutes. Below is a training loop for one process, with PyTorch's
# loader. Make it data parallel with what PyTorch has for it. `DistributedDataParallel`
# starts every rank with the weights of rank 0, and during `backward` it averages the
# gradients by an all-reduce. `DistributedSampler` shuffles the samples in the same way
# on every rank and deals them out like cards: rank r gets those at the places r, r +
# world size, r + 2 · world size, and so on. Five places are left for you:
# 1. the sampler, whose `seed` you leave alone, and the number of samples that one rank
#    takes of a batch: the batch size by the world size, rounded down;
# 2. the model, wrapped;
# 3. a new order of the samples in each epoch: the sampler is to be told its number by
#    `set_epoch`;
# 4. the loss of an epoch, as the mean over all samples of all ranks, on every rank;
# 5. the line that is printed: once, not once a rank.
#
# With 48 samples, batches of 12 and 4 ranks, each rank takes 3 samples a step. After
# two epochs every rank has the weights that one process would have, and rank 0 has
# printed two lines. The check uses a small network like that of chapter 3.
#
#     python scripts/exercises/11_ddp.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def train_ddp(model, dataset, epochs, batch_size, learning_rate):
    """Train on all ranks together; return the mean loss of each epoch.

    model: other weights on every rank; those of rank 0 count. It is trained in
    place. dataset: pairs of an input and its label. batch_size: samples a step,
    of all ranks together. Losses are floats.
    """
    sampler, share = None, batch_size
    # TODO: which samples are this rank's, and how many it takes at each step.
    # YOUR CODE HERE
    raise NotImplementedError()
    loader = DataLoader(dataset, batch_size=share, sampler=sampler)
    replica = model
    # TODO: the model that starts equal everywhere and averages its gradients.
    # YOUR CODE HERE
    raise NotImplementedError()
    optimizer = torch.optim.SGD(replica.parameters(), lr=learning_rate)
    losses, device = [], next(model.parameters()).device
    for epoch in range(epochs):
        # TODO: another order in each epoch.
        # YOUR CODE HERE
        raise NotImplementedError()
        # Losses, samples; on the model's device, for NCCL sends from there.
        total = torch.zeros(2, dtype=torch.float64, device=device)
        for inputs, labels in loader:
            inputs, labels = inputs.to(device), labels.to(device)
            loss = nn.functional.cross_entropy(replica(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total[0] += len(labels) * loss.item()
            total[1] += len(labels)
        # TODO: the sums over all ranks, on every rank.
        # YOUR CODE HERE
        raise NotImplementedError()
        mean = total[0] / total[1]
        losses.append(mean.item())
        line = f"epoch {epoch} | train_loss {mean:.4f}"
        # TODO: print the line, once.
        # YOUR CODE HERE
        raise NotImplementedError()
    return losses


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("ddp", train_ddp) else 1)
