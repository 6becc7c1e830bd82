"""A communicator that knows how many bytes its calls were given."""

import pickle


class Watched:
    """Passes every call on to `comm`; pickled, sent: bytes of objects, and of buffers."""

    def __init__(self, comm):
        self._comm, self.pickled, self.sent = comm, 0, 0

    def __getattr__(self, name):
        value = getattr(self._comm, name)
        if name.startswith("_") or not callable(value):
            return value

        def call(*given, **named):
            everything = [*given, *named.values()]
            if name[0].islower():
                self.pickled += sum(len(pickle.dumps(one)) for one in everything)
            else:
                self.sent = max([self.sent, *map(_nbytes, everything)])
            return value(*given, **named)

        return call


def world():
    """All ranks, watched."""
    from mpi4py import MPI

    return Watched(MPI.COMM_WORLD)


def _nbytes(buffer):
    """Return the bytes of a tensor, an array, or a list that begins with one; 0 of anything else."""
    if isinstance(buffer, (list, tuple)) and buffer:
        buffer = buffer[0]
    return getattr(buffer, "nbytes", 0)
