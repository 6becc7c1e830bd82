"""Where does my code hang? On two ranks of this machine, in three seconds."""

from ranklab import Ranks


def my_step():  # yours: import it from your own module
    import torch
    import torch.distributed as dist

    gradient = torch.ones(4)
    if dist.get_rank() == 0:  # "only rank 0 logs the loss"
        dist.all_reduce(torch.ones(1))
    dist.all_reduce(gradient)


if __name__ == "__main__":
    with Ranks(2, backend="gloo", device="cpu", timeout=3) as ranks:
        try:
            ranks.run(my_step)
        except Exception as error:
            print(error)
