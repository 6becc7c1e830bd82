from ranklab.exercises import Case, Exercise

exercise = Exercise(
    cases=[Case("nothing", lambda rank, world_size: (), ranks=5)],
    twin=lambda inputs: [5] * 5,
    hint="world_size",
)
