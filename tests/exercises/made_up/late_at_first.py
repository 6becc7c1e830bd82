import itertools

from ranklab.exercises import Case, Exercise

_runs = itertools.count()


exercise = Exercise(
    cases=[Case("nothing", lambda rank, world_size: (), ranks=1)],
    twin=lambda inputs: [None],
    too_slow=lambda seen: "Late at first." if next(_runs) == 0 else None,
    hint="none",
)
