"""What comm.Split does, over torch.distributed."""

from unittest import mock

import torch
import torch.distributed as dist

from ranklab.exercises import Case, Exercise, Mistake

EACH = "for each in sorted(set(colors) - {None}):"
MINE = "if each == color:"
NOTHING = ([], 0)  # what a rank without a group has
UNLIKE = "ranks that did not all make the same groups"


def case(what, *colors):
    return Case(what, lambda rank, world_size: (colors[rank],), ranks=len(colors))


def drive(answer, color):
    """Return the members of the group that the answer made, and their ranks' sum, added by it.

    Of ranks that made different groups some find each other by luck: that is told before they try.
    """
    made, new_group = [], dist.new_group

    def noted(ranks=None, *rest, **options):
        if not options.get("use_local_synchronization"):
            made.append(ranks and sorted(ranks))
        return new_group(ranks, *rest, **options)

    with mock.patch.object(dist, "new_group", noted):
        group = answer(color)
    everywhere = [None] * dist.get_world_size()
    dist.all_gather_object(everywhere, made)
    if everywhere != [made] * len(everywhere):
        return UNLIKE
    if group is None:
        return NOTHING
    total = torch.tensor(dist.get_rank())
    dist.all_reduce(total, group=group)
    return dist.get_process_group_ranks(group), total.item()


def twin(inputs):
    colors = [color for (color,) in inputs]
    members = [
        [r for r, other in enumerate(colors) if other == color] if color is not None else []
        for color in colors
    ]
    return [(of_rank, sum(of_rank)) for of_rank in members]


def mixed_up(seen):
    """Did ranks make different groups, or wait in one that others do not make?"""
    several = len({color for (color,) in seen.inputs}) > 1
    return UNLIKE in seen.results or (several and seen.happened != "returned")


def by_all_ranks_in_turn(color):
    colors = [None] * dist.get_world_size()
    dist.all_gather_object(colors, color)
    groups = {}
    for one in colors:
        if one is not None and one not in groups:
            groups[one] = dist.new_group([r for r, c in enumerate(colors) if c == one])
    return groups.get(color)


def by_members_alone(color):
    colors = [None] * dist.get_world_size()
    dist.all_gather_object(colors, color)
    if color is None:
        return None
    members = [r for r, other in enumerate(colors) if other == color]
    return dist.new_group(members, use_local_synchronization=True)


exercise = Exercise(
    cases=[
        case("colors 0, 1, 0, 1", 0, 1, 0, 1),
        case("colors 7, 7, 2", 7, 7, 2),
        case("a rank without a color", 1, None, 1, 0),
        case("all of one color", 3, 3),
        case("nobody has a color", None, None),
        case("alone", 5),
    ],
    twin=twin,
    drive=drive,
    limit=8.0,
    hint="All ranks must learn all colors, and then all must call new_group for each of them.",
    mistakes=[
        Mistake(
            "Every rank must call new_group for every group, also for those that it is not in, and "
            "all in the same order.",
            {EACH: "for each in {color} - {None}:"},
            happened=("stuck", "error", "slow", "died", "returned"),
            test=mixed_up,
        ),
        Mistake(
            "None is not a color: who has none is in no group, and gets None.",
            {" - {None}": ", key=str"},
        ),
        Mistake(
            "The group that was made last is not every rank's own: keep the one of your color.",
            {MINE: "if True:"},
        ),
        Mistake(
            "Members of a group are named by their ranks among all, not by their colors or their "
            "numbers.",
            {"[r for r, other in enumerate(colors) if other == each]": "[each]"},
        ),
    ],
    also_right=[by_all_ranks_in_turn, by_members_alone],
)
