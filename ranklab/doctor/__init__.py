"""The doctor: where each rank is, who waits for whom, and how those that are stuck are freed.

On each rank, also while that is stuck:

- witness.py: answers for the main thread
- calls.py, mpi_calls.py: read which communication that is in, of torch or of MPI
- expressions.py: what the source says where a frame stands
- sockets.py: finds the connections to shut

In the kernel:

- vigil.py: watches over a cell while it runs, acts on what it sees, reads what came back
- ctrl_c.py, notice.py: a reader who interrupts, and what stands below the cell meanwhile
- rounds.py: asks all ranks where they are, and frees them
- silent.py, deaths.py, stacks.py: what can be known of those that do not answer, and of the dead
- one_rank.py, diagnosis.py, mismatch.py, failures.py: what was found, as plain data
- places.py: where in the reader's own code
- sentences.py, telling.py: all of it in words, one by one and as the error of a cell
"""

REQUEST = "ranklab_request"  # what the kernel asks a rank's control thread
