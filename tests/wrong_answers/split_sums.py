"""Wrong answers to the exercise on a loss with smoothing: the solution, with one mistake each."""

import torch
import torch.distributed as dist
from torch import nn

from ranklab.taught.tensor import copied, summed
from wrong_answers import wrong


def _largest(logits):
    largest = logits.detach().amax(1)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return largest[:, None]


def _nothing(x):
    """Zeros with a way back."""
    return x - x.detach()


def _of_target(shifted, targets, first):
    column = targets - first
    mine = (column >= 0) & (column < shifted.shape[1])
    return shifted.gather(1, column.where(mine, 0)[:, None])[:, 0].where(mine, 0)


def _mix(lse, target, every, vocabulary, epsilon):
    return ((1 - epsilon) * (lse - target) + epsilon * (lse - every / vocabulary)).mean()


def _smooth(largest=_largest, add=summed, of_target=_of_target, mix=_mix):
    def smooth_cross_entropy(logits, targets, first, vocabulary, epsilon):
        shifted = logits - largest(logits)
        own = [shifted.exp().sum(1), of_target(shifted, targets, first), shifted.sum(1)]
        sums, target, every = add(torch.stack(own))
        return mix(sums.log(), target, every, vocabulary, epsilon)

    return (smooth_cross_entropy,)


def _wrong(*says):
    return wrong("smooth_cross_entropy", says=says, several=True)


@_wrong("logits times 10000", "What may be subtracted")
def subtracts_nothing():
    return _smooth(largest=lambda logits: 0)


@_wrong("All must subtract the same")
def subtracts_its_own_largest():
    return _smooth(largest=lambda logits: logits.detach().amax(1, keepdim=True))


@_wrong("Which numbers need those of all ranks?", "all targets in the last rank's part")
def sums_nothing_where_it_has_all_targets():
    """Right in the cases in which some rank has none of the targets."""

    def smooth_cross_entropy(logits, targets, first, vocabulary, epsilon):
        mine = (first <= targets) & (targets < first + logits.shape[1])
        own = nn.functional.cross_entropy(
            logits, (targets - first).where(mine, 0), label_smoothing=epsilon
        )
        everyones = torch.tensor([float(mine.all())])
        dist.all_reduce(everyones)
        loss = _smooth()[0](logits, targets, first, vocabulary, epsilon)
        return own if everyones.item() else loss

    return (smooth_cross_entropy,)


@_wrong("gradient", "as many times too large as there are ranks")
def a_sum_that_sums_in_backward():
    return _smooth(add=lambda own: copied(summed(own)))


@_wrong("nothing leads back from it to the logits")
def a_sum_that_autograd_does_not_know():
    def add(own):
        total = own.detach().clone()
        dist.all_reduce(total)
        return total

    return _smooth(add=add)


@_wrong("The loss is right, and its gradient is not", "the one of the target's logits")
def detaches_the_targets_part():
    return _smooth(of_target=lambda *args: _of_target(*args).detach())


@_wrong("The loss is right, and its gradient is not", "is the largest logit", "detached?")
def goes_back_through_the_largest():
    return _smooth(largest=lambda logits: _largest(logits) + _nothing(logits.amax(1, True)))


@_wrong("Where does it stand in this rank's part")
def takes_targets_for_columns_of_its_own():
    return _smooth(of_target=lambda shifted, targets, _: shifted.gather(1, targets[:, None])[:, 0])


@_wrong("What has a rank to add for a target that is not its own?")
def adds_column_0_for_targets_of_others():
    def of_target(shifted, targets, first):
        column = targets - first
        mine = (column >= 0) & (column < shifted.shape[1])
        return shifted.gather(1, column.where(mine, 0)[:, None])[:, 0]

    return _smooth(of_target=of_target)


@_wrong("without smoothing")
def ignores_epsilon():
    return _smooth(mix=lambda lse, target, every, vocabulary, epsilon: (lse - target).mean())


@_wrong("the target included")
def spreads_over_the_others_only():
    def mix(lse, target, every, vocabulary, epsilon):
        others = lse - (every - target) / (vocabulary - 1)
        return ((1 - epsilon) * (lse - target) + epsilon * others).mean()

    return _smooth(mix=mix)


@_wrong("The target has the share 1 - epsilon")
def takes_epsilon_the_other_way():
    return _smooth(mix=lambda *args: _mix(*args[:4], 1 - args[4]))


@_wrong("the mean is asked for")
def sums_over_the_places():
    return _smooth(mix=lambda *args: _mix(*args) * len(args[0]))


@_wrong("this is the sum over it")
def sums_over_the_vocabulary():
    def mix(lse, target, every, vocabulary, epsilon):
        return ((1 - epsilon) * (lse - target) + epsilon * (vocabulary * lse - every)).mean()

    return _smooth(mix=mix)


@_wrong("own part has the share 1 - epsilon")
def adds_to_the_whole_of_the_target():
    def mix(lse, target, every, vocabulary, epsilon):
        return ((lse - target) + epsilon * (lse - every / vocabulary)).mean()

    return _smooth(mix=mix)


@_wrong("How many columns are there altogether?")
def adds_the_ranks_means():
    def smooth_cross_entropy(logits, targets, first, vocabulary, epsilon):
        shifted = logits - _largest(logits)
        sums, target = summed(
            torch.stack([shifted.exp().sum(1), _of_target(shifted, targets, first)])
        )
        lse = sums.log()
        every = summed((lse[:, None] - shifted).mean(1))
        return ((1 - epsilon) * (lse - target) + epsilon * every).mean()

    return (smooth_cross_entropy,)


@_wrong("more than four numbers", "Let the logits stay where they are")
def sums_all_logits():
    def smooth_cross_entropy(logits, targets, first, vocabulary, epsilon):
        whole = nn.functional.pad(logits, (first, vocabulary - first - logits.shape[1]))
        return nn.functional.cross_entropy(summed(whole), targets, label_smoothing=epsilon)

    return (smooth_cross_entropy,)


@_wrong("1, 4 and 2 columns", "one number for each place, on every rank")
def gathers_the_logits_as_if_even():
    def smooth_cross_entropy(logits, targets, first, vocabulary, epsilon):
        boxes = [torch.empty_like(logits) for _ in range(dist.get_world_size())]
        dist.all_gather(boxes, logits.detach())
        boxes[dist.get_rank()] = logits
        whole = torch.cat(boxes, 1)
        return nn.functional.cross_entropy(whole, targets, label_smoothing=epsilon)

    return (smooth_cross_entropy,)


@_wrong("The loss is a tensor, from which backward can start")
def returns_a_float():
    def smooth_cross_entropy(*args):
        return _smooth()[0](*args).item()

    return (smooth_cross_entropy,)


@_wrong("stuck", "Every rank must take part")
def only_who_has_a_target_takes_part():
    def smooth_cross_entropy(logits, targets, first, vocabulary, epsilon):
        if not ((first <= targets) & (targets < first + logits.shape[1])).any():
            return logits.sum() * 0
        return _smooth()[0](logits, targets, first, vocabulary, epsilon)

    return (smooth_cross_entropy,)


@_wrong("different losses", "over the columns of all ranks")
def sums_of_its_own():
    return _smooth(add=lambda own: own)
