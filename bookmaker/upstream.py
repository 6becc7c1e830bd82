"""What the builder uses of other packages without being promised: nbclient, Sphinx, torch.

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


def index_entries(builder):
    """What Sphinx writes into the search's index of `.. index::`: {page: [(term, place, main)]}.

    Without it: after `make book` of one changed sentence the search finds the other pages no more
    by the terms of book/contents.yml.
    """
    return builder.indexer._index_entries
