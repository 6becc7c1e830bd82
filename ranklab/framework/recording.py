"""Whether operations are remembered."""

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
