from ranklab.exercises import Case, Exercise


def _twice(x):
    if isinstance(x, list):
        return [_twice(part) for part in x]
    return {key: _twice(part) for key, part in x.items()} if isinstance(x, dict) else x * 2


exercise = Exercise(
    cases=[
        Case(f"x = {x}", lambda rank, world_size, x=x: (x,), ranks=1)
        for x in (1, 2.5, True, "a", [1, "b"], {"c": 2})
    ],
    twin=lambda inputs: [_twice(inputs[0][0])],
    hint="Twice.",
)
