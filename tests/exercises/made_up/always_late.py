from ranklab.exercises import Case, Exercise

exercise = Exercise(
    cases=[Case("nothing", lambda rank, world_size: (), ranks=1)],
    twin=lambda inputs: [None],
    too_slow=lambda seen: "Late again.",
    hint="Be quick.",
)
