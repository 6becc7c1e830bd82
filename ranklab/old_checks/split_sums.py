"""The exercise of chapter 18 on a loss of a vocabulary that is dealt out."""

import torch
from torch import nn

from ranklab.checks._said import breaks_a_rule, called_as
from ranklab.checks.tensor import _pieces as pieces
from ranklab.old_checks._model import Case, Exercise, Hint

_LOSS, _GRADIENT = "loss", "gradient of the logits"
_NUMBERS = 4  # that may be handed over for each place


def _drive_smooth(answer, logits, targets, first, vocabulary, epsilon):
    leaf = pieces.leaf(logits)
    loss = answer(leaf, targets, first, vocabulary, epsilon)
    if not torch.is_tensor(loss):
        return loss
    if loss.requires_grad and loss.ndim == 0:
        loss.backward()
    return {_LOSS: loss, _GRADIENT: leaf.grad}


def _loss_of(logits, targets, vocabulary, epsilon):
    return nn.functional.cross_entropy(logits, targets, label_smoothing=epsilon)


def _expected_smooth(inputs, loss_of=_loss_of):
    """The same of all columns, in one process."""
    sizes = [args[0].shape[1] for args in inputs]
    leaf = pieces.leaf(torch.cat([args[0] for args in inputs], 1))
    loss = loss_of(leaf, inputs[0][1], *inputs[0][3:])
    loss.backward()
    return [{_LOSS: loss.detach(), _GRADIENT: part} for part in leaf.grad.split(sizes, 1)]


def _not_smooth(logits, targets, vocabulary, epsilon):
    return nn.functional.cross_entropy(logits, targets)


def _over_the_others(logits, targets, vocabulary, epsilon):
    """epsilon spread over all tokens but the target."""
    logp = torch.log_softmax(logits, 1)
    target = logp.gather(1, targets[:, None])[:, 0]
    return -((1 - epsilon) * target + epsilon * (logp.sum(1) - target) / (vocabulary - 1)).mean()


def _swapped(logits, targets, vocabulary, epsilon):
    return _loss_of(logits, targets, vocabulary, 1 - epsilon)


def _of_sum_over_places(logits, targets, vocabulary, epsilon):
    return len(targets) * _loss_of(logits, targets, vocabulary, epsilon)


def _of_sum_over_vocabulary(logits, targets, vocabulary, epsilon):
    """epsilon times the sum, and not the mean, over the vocabulary."""
    logp = torch.log_softmax(logits, 1)
    target = logp.gather(1, targets[:, None])[:, 0]
    return -((1 - epsilon) * target + epsilon * logp.sum(1)).mean()


def _with_no_share_for_the_target(logits, targets, vocabulary, epsilon):
    """The target's part is not multiplied by 1 - epsilon."""
    return _not_smooth(logits, targets, vocabulary, epsilon) - epsilon * (
        torch.log_softmax(logits, 1).mean(1).mean()
    )


def _is(seen, loss_of):
    wanted = [one[_LOSS] for one in _expected_smooth(seen.inputs, loss_of)]
    return pieces.is_instead(seen, _LOSS, wanted)


def _alone(seen):
    """Is it the loss of each rank's own columns, where they have the target?"""
    found = []
    for (logits, targets, first, vocabulary, epsilon), got in zip(seen.inputs, seen.results):
        if not ((first <= targets) & (targets < first + logits.shape[1])).all():
            continue
        own = _loss_of(logits, targets - first, vocabulary, epsilon)
        found.append(pieces.near(got[_LOSS], own))
    return bool(found) and all(found)


def _ranks_differ(seen):
    return not all(pieces.near(got[_LOSS], seen.results[0][_LOSS]) for got in seen.results)


def _own_means(seen):
    """The loss if the means over each rank's own columns are added up."""
    (_, targets, _, vocabulary, epsilon), logits = seen.inputs[0], [a[0] for a in seen.inputs]
    lse = torch.cat(logits, 1).logsumexp(1)
    means = sum((lse[:, None] - part).mean(1) for part in logits)
    sharp = _not_smooth(torch.cat(logits, 1), targets, vocabulary, epsilon)
    return [(1 - epsilon) * sharp + epsilon * means.mean()] * len(logits)


def _own_largest(seen):
    """The loss where each rank subtracts its own largest logit, and adds up what it then has."""
    _, targets, _, _, epsilon = seen.inputs[0]
    shifted = [args[0] - args[0].amax(1, keepdim=True) for args in seen.inputs]
    whole = torch.cat(shifted, 1)
    target = whole.gather(1, targets[:, None])[:, 0]
    loss = whole.logsumexp(1) - (1 - epsilon) * target - epsilon * whole.mean(1)
    return [loss.mean()] * len(shifted)


def _few_numbers(seen):
    """A sentence if more was sent than four numbers a place, by whatever collective."""
    n, places = len(seen.inputs), len(seen.inputs[0][1])
    allowed = (n - 1) * _NUMBERS * places * 8
    if n == 1 or max(seen.sent) <= allowed:
        return None
    return (
        f"The numbers are right. But a rank sends {max(seen.sent):,} bytes for {places} places: "
        "more than four numbers for each. Let the logits stay where they are."
    )


def _logits(what, *sizes, places=5, scale=1.0, epsilon=0.1, offset=0.0, targets=None):
    """A case in which rank r has sizes[r] columns of the vocabulary."""

    def make(rank, world_size):
        first, vocabulary = sum(sizes[:rank]), sum(sizes)
        whole = scale * pieces.drawn(3, places, vocabulary) + offset
        generator = torch.Generator().manual_seed(1)
        drawn = torch.randint(vocabulary, (places,), generator=generator)
        mine = whole[:, first : first + sizes[rank]].clone()
        wanted = drawn if targets is None else drawn * 0 + targets
        return mine, wanted, first, vocabulary, epsilon

    return Case(what, make, ranks=len(sizes))


def _large(seen):
    return "10" in seen.case.what and ("times" in seen.case.what or "around" in seen.case.what)


smooth_cross_entropy = Exercise(
    "smooth_cross_entropy",
    cases=[
        _logits("3 columns on each of the ranks", 3, 3, 3, 3),
        _logits("1, 4 and 2 columns", 1, 4, 2),
        _logits("all targets in the last rank's part", 4, 3, epsilon=0.3, targets=6),
        _logits("epsilon is 0", 2, 3, epsilon=0.0),
        _logits("logits times 10000", 3, 2, 2, scale=1e4),
        _logits("logits around -10000", 3, 4, offset=-1e4),
        _logits("12 columns on each, and 40 places", 12, 12, 12, 12, places=40),
        _logits("alone", 6),
    ],
    expected=_expected_smooth,
    drive=_drive_smooth,
    judge=_few_numbers,
    trace=True,
    tolerance=pieces.CLOSE,
    hints=[
        called_as("smooth_cross_entropy(logits, targets, first, vocabulary, epsilon)"),
        Hint(
            lambda seen: "out of bounds" in seen.error or "out of range" in seen.error,
            "A target is the number of a column of the whole vocabulary. Where does it stand in "
            "this rank's part, and what if it does not?",
            when=("error",),
        ),
        pieces.NOTHING_RETURNED,
        Hint(
            lambda seen: "inplace operation" in seen.error or "in-place" in seen.error,
            "Something was changed in place that autograd still needs. Is the largest taken of "
            "`logits.detach()`?",
            when=("error",),
        ),
        Hint(
            lambda seen: len({args[0].shape for args in seen.inputs}) > 1,
            "The ranks have different numbers of columns, and not all have the target. What each "
            "gives to a collective has one number for each place, on every rank.",
            when=("stuck", "died", "error"),
        ),
        pieces.said_to_wait("Every rank must take part in every collective, in the same order."),
        Hint(
            lambda seen: not isinstance(seen.results[0], dict),
            "The loss is a tensor, from which backward can start.",
        ),
        Hint(
            lambda seen: seen.found in ("shape", "dtype"),
            "The loss is one number, the mean over the places.",
        ),
        Hint(
            lambda seen: _large(seen) and not seen.results[0][_LOSS].isfinite(),
            "exp of 10000 is too large a number for any type, and exp of -10000 is 0, whose "
            "logarithm is none. What may be subtracted from all logits of a place?",
        ),
        Hint(
            lambda seen: _alone(seen),
            "That is the loss of the rank's own columns. Which numbers need those of all ranks?",
        ),
        Hint(
            lambda seen: _is(seen, _not_smooth),
            "That is the cross-entropy without smoothing.",
        ),
        Hint(
            lambda seen: _is(seen, _over_the_others),
            "epsilon is spread over all tokens of the vocabulary, the target included.",
        ),
        Hint(
            lambda seen: _is(seen, _swapped),
            "The target has the share 1 - epsilon, and the mean of all has epsilon.",
        ),
        Hint(
            lambda seen: _is(seen, _of_sum_over_places),
            "That is the sum over the places; the mean is asked for.",
        ),
        Hint(
            lambda seen: _is(seen, _of_sum_over_vocabulary),
            "epsilon goes to the mean over the vocabulary, and this is the sum over it.",
        ),
        Hint(
            lambda seen: _is(seen, _with_no_share_for_the_target),
            "The target's own part has the share 1 - epsilon.",
        ),
        Hint(
            lambda seen: pieces.is_instead(seen, _LOSS, _own_means(seen)),
            "The mean over the vocabulary is not the sum of the ranks' means. How many columns are "
            "there altogether?",
        ),
        Hint(
            lambda seen: pieces.is_instead(seen, _LOSS, _own_largest(seen)),
            "Each rank has subtracted its own largest logit, and then they add up what does not "
            "belong together. All must subtract the same.",
        ),
        Hint(
            _ranks_differ,
            "The ranks come to different losses. Each sum over the vocabulary, and the largest "
            "logit, too, is over the columns of all ranks.",
        ),
        Hint(
            lambda seen: pieces.is_right(seen, _LOSS) and seen.results[0][_GRADIENT] is None,
            "The loss is right, but nothing leads back from it to the logits: is a part of them "
            "detached, or summed by what autograd does not know?",
        ),
        Hint(
            lambda seen: pieces.is_instead(seen, _GRADIENT, len(seen.results)),
            "The loss is right, and the gradient is as many times too large as there are ranks: "
            "the sum's backward is to hand on the gradient as it is. `summed` does that.",
        ),
        Hint(
            lambda seen: pieces.is_right(seen, _LOSS),
            "The loss is right, and its gradient is not. Do all sums that lead to it go through "
            "`summed`, the one of the target's logits, too? And is the largest logit, which only "
            "keeps the numbers small, detached?",
        ),
        Hint(
            lambda seen: not seen.results[0][_LOSS].isfinite(),
            "The loss is no finite number. What is the logit of a target that is not this rank's?",
        ),
        Hint(
            breaks_a_rule,
            "The largest logit, and three sums: of exp, of the logits, and of the target's logit.",
        ),
    ],
    hint="-log p is log(sum of exp) minus the logit. Its mean over the vocabulary needs one more "
    "sum than the chapter's loss. What has a rank to add for a target that is not its own?",
)
