"""Ranks that are those of an MPI world, too: `Ranks(4, engines="mpi")`.

An engine asks for its MPI rank as its number, and the lab counts on that; but it is a request.
"""

from ranklab.errors import RankError


def check_world(places):
    """Raise RankError where engine i is not rank i. places: (rank, size of the world) of each."""
    if places == [(rank, len(places)) for rank in range(len(places))]:
        return
    if {size for _, size in places} == {1}:
        raise RankError(
            f"mpiexec started {len(places)} processes, and for MPI each is alone in a world of its "
            "own: mpiexec is of another MPI library than mpi4py. Install both together: "
            "pip install --force-reinstall mpi4py mpich."
        )
    raise RankError(
        f"The engines are not the ranks of MPI in the same order ({places}). Run the cell again."
    )
