from ranklab.exercises import Case, Exercise

exercise = Exercise(
    cases=[Case(f"x = {x}", lambda rank, world_size, x=x: (x,), ranks=1) for x in (0, 1, 2, 3, 5)],
    twin=lambda inputs: [inputs[0][0] % 2 == 0],
    hint="%",
    limit=2.0,
)
