"""What the builder uses of other packages without being promised: of nbclient, and of torch.

The name of torch's is that of ranklab.upstream.torch, which would import torch here.
"""

# Imported by the first optimizer, and by DDP: a second or more, on each rank.
LOADED_BY_OPTIMIZERS = "torch._dynamo"


def was_interrupted(client):
    """Was it Ctrl-C that ended an execution? nbclient stops the kernel, and stumbles over that.

    Read in nbclient 0.11: the handler of the signal sets this, and nothing else does.

    Without it: Ctrl-C during `make book` is told as a chapter that failed.
    """
    return hasattr(client, "_async_cleanup_kernel_future")
