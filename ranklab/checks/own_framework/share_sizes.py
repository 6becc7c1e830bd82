"""How many examples of each batch each rank has."""

from ranklab.exercises import Case, Exercise, Mistake

OWN = "len(range(rank, size, ranks))"  # in the solution


def case(n, batch_size, ranks):
    return Case(
        f"{n} examples, batches of {batch_size}, {ranks} ranks",
        lambda *_: (n, batch_size, ranks),
        ranks=1,
    )


def twin(inputs):
    ((n, batch_size, ranks),) = inputs
    sizes = [batch_size] * (n // batch_size) + [n % batch_size] * (n % batch_size > 0)
    return [[[size // ranks + (r < size % ranks) for r in range(ranks)] for size in sizes]]


exercise = Exercise(
    cases=[case(10, 4, 3), case(50_000, 12_800, 3), case(9, 3, 4), case(8, 4, 2), case(5, 8, 1)],
    twin=twin,
    limit=3.0,
    hint="Of each batch, rank r has the examples r, r + ranks, r + 2 ranks, and so on.",
    mistakes=[
        Mistake(
            "Where the ranks do not divide a batch, examples are lost: the sizes of a step add up "
            "to the size of its batch.",
            {OWN: "size // ranks"},
        ),
        Mistake(
            "There are more examples than the batch has. Two shares differ by one at most, and "
            "only the first ranks have one more.",
            {OWN: "-(-size // ranks)"},
        ),
        Mistake(
            "The last batch of an epoch may be smaller than the others.",
            {"min(batch_size, n - first)": "batch_size"},
        ),
        Mistake(
            "A batch has its first example on rank 0, so it is the first ranks that have one more.",
            {OWN: "len(range(ranks - 1 - rank, size, ranks))"},
        ),
    ],
    also_right=[{OWN: "(size - rank + ranks - 1) // ranks"}],
)
