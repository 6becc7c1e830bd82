"""Variables on the ranks: pulled from all of them by name, or pushed to all."""

import pickle

from ranklab.errors import ArgumentError, MissingOnRanks, RankError, named
from ranklab.forgotten import OF_EACH_RANK
from ranklab.ranks import outcome


def pull(ranks, name):
    """Return the value that each rank has for `name`, in rank order."""
    _check_name(name)
    ranks.check_alive()
    try:
        return outcome.take(ranks, ranks.client[:].pull(name, block=False))
    except RankError as error:
        lacking = [failure.rank for failure in error.failures if failure.lacks == name]
        if not lacking:
            raise
        have = "have" if len(lacking) > 1 else "has"
        said = f"{named(lacking)} {have} no `{name}`: a %%px cell that runs there must set it."
    raise MissingOnRanks(said)


def push(ranks, name, value):
    """Give every rank `value` under `name`."""
    _check_name(name)
    if name in OF_EACH_RANK:
        raise ArgumentError(f"`{name}` is what each rank calls its own; take another name.")
    ranks.check_alive()
    try:
        pushed = ranks.client[:].push({name: value}, block=False)
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        raise ArgumentError(f"`{name}` cannot go to another process: {error}.") from None
    outcome.take(ranks, pushed)


def _check_name(name):
    if not isinstance(name, str) or not name.isidentifier():
        raise ArgumentError(f"{name!r} is not a name that a variable can have.")
