"""The doctor: where each rank is, who waits for whom, and how those that are stuck are freed.

On each rank, witness.py answers for the main thread, also while that is stuck; calls.py reads which
communication it is in, and sockets.py finds the connections to shut. In the kernel, rounds.py asks
all ranks, and remains.py looks at those that do not answer; diagnosis.py says what follows, and
mismatch.py what follows from the collectives that they made; vigil.py watches over a cell while it
runs, and acts.
"""

REQUEST = "ranklab_request"  # what the kernel asks a rank's control thread
