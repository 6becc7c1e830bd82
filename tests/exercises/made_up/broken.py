from ranklab.exercises import Case, Exercise

exercise = Exercise(
    cases=[Case("nothing", lambda rank, world_size: (1 / 0,), ranks=1)],
    twin=lambda inputs: [0],
    hint="none",
)
