"""On the ranks of an MPI world: what the answer to an exercise talks through."""


def communicator():
    """Return a communicator of the case's ranks, to be handed to the answer by `drive`.

    All of them ask for it, and each time it is a new one, where nothing of another answer arrives.
    """
    import torch.distributed as dist
    from mpi4py import MPI

    ranks = range(dist.get_world_size())  # the case's process group is of these
    return MPI.COMM_WORLD.Create_group(MPI.COMM_WORLD.group.Incl(ranks))
