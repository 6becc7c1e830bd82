from ranklab.exercises import Case, Exercise, Mistake, communicator


def shift(answer, x):
    return answer(communicator(), x)


def from_the_right(comm, x):
    return comm.sendrecv(x, (comm.rank - 1) % comm.size, source=(comm.rank + 1) % comm.size)


def synchronously(comm, x):
    comm.ssend(x, (comm.rank + 1) % comm.size)
    return comm.recv(source=(comm.rank - 1) % comm.size)


exercise = Exercise(
    cases=[Case(f"{n} numbers", lambda rank, _: (10 * rank,), ranks=n) for n in (3, 2, 1)],
    twin=lambda inputs: [inputs[rank - 1][0] for rank in range(len(inputs))],
    drive=shift,
    mistakes=[
        Mistake("It comes from the other side.", from_the_right),
        Mistake("Nobody receives while all send.", synchronously, happened="stuck"),
    ],
    hint="Shift.",
    engines="mpi",
)
