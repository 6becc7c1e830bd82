"""Right answers to the exercise on a limit to memory."""

from right_answers import right


@right("within_limit")
def as_if_played(stages, micro_batches, limit):
    """Second by second: a stage that is free takes a backward if one is there, else a forward."""
    ready = {("F", k, 0): 0 for k in range(micro_batches)}  # (kind, k, stage): from when on
    free, schedule = [0] * stages, [[] for _ in range(stages)]
    for now in range(3 * stages * micro_batches + 1):
        for stage in range(stages):
            if free[stage] > now:
                continue
            held = sum(1 if kind == "F" else -1 for kind, *_ in schedule[stage])
            room = min(limit, stages - stage)
            able = sorted(
                (one[0] == "F", one[1])
                for one, since in ready.items()
                if one[2] == stage and since <= now and (one[0] == "B" or held < room)
            )
            if not able:
                continue
            kind, k = "F" if able[0][0] else "B", able[0][1]
            del ready[kind, k, stage]
            schedule[stage].append((kind, k, 0))
            free[stage] = end = now + (1 if kind == "F" else 2)
            if kind == "F":
                ready["F" if stage < stages - 1 else "B", k, min(stage + 1, stages - 1)] = end
            elif stage > 0:
                ready["B", k, stage - 1] = end
    return schedule


@right("within_limit")
def at_most_so_many_on_the_way(stages, micro_batches, limit):
    """Groups that follow each other closely; within each, as 1F1B; sorted as (round, time)."""
    many = min(stages, limit)

    def when(kind, k, stage):
        group, place = divmod(k, many)
        way = stage if kind == "F" else 3 * stages - 2 * stage - 2
        return 3 * stages * group + 3 * place + way

    both = [(kind, k) for kind in "FB" for k in range(micro_batches)]
    return [
        [(*one, 0) for one in sorted(both, key=lambda one: when(*one, stage))]
        for stage in range(stages)
    ]
