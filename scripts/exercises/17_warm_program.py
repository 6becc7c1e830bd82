# Generated from book/17_pipeline.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: 305502d0aff7).
#
# === 1F1B for a stage =================================================================
#
# Fill in, about 10 minutes. `warm_program(stage, stages, micro_batches)` returns the
# program of one stage in 1F1B, from nothing but these three numbers, and without the
# chapter's functions. There may be fewer micro-batches than stages. For the last but
# one of several stages and 4 micro-batches it is F0 F1 B0 F2 B1 F3 B2 B3.
#
#     python scripts/exercises/17_warm_program.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

def warm_program(stage, stages, micro_batches):
    """The program of a stage in 1F1B, a list of ("F", k, 0) and ("B", k, 0)."""
    program = []
    # TODO: how many forwards first, then which pairs, and what is left?
    # YOUR CODE HERE
    raise NotImplementedError()
    return program


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("warm_program", warm_program) else 1)
