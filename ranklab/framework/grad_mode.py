"""Whether operations are remembered, and whether what was remembered can be gone back through."""

_nested = []


def recording():
    """Whether a tensor shall remember what it was computed from."""
    return not _nested


class no_grad:
    """Within `with no_grad():` nothing is remembered, which saves memory."""

    def __enter__(self):
        _nested.append(self)

    def __exit__(self, *error):
        _nested.pop()


def checked(order):
    """The tensors that a backward goes through, the output last; RuntimeError if it cannot."""
    if not order:
        raise RuntimeError("this Tensor does not require grad and has no graph: nothing to do")
    if order[-1].size != 1:
        raise RuntimeError("grad can be created only for scalar outputs, such as a loss")
    if any(node.rules is None for node in order):
        raise RuntimeError(
            "Trying to backward through the graph a second time: the first time used it up"
        )
    return order
