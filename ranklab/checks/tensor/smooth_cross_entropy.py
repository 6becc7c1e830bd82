"""A loss with smooth labels, of a vocabulary that is dealt out."""

import torch
import torch.distributed as dist
from torch import nn

from ranklab.checks.tensor import _pieces as pieces
from ranklab.exercises import Case, Exercise, Mistake

NUMBERS = 4  # that may be handed over for each place


def drive(answer, logits, *args):
    leaf = pieces.leaf(logits)
    loss = answer(leaf, *args)
    if not torch.is_tensor(loss):
        return loss
    if loss.requires_grad and loss.ndim == 0:
        loss.backward()
    return {"loss": loss, "gradient of the logits": leaf.grad}


def twin(inputs):
    """The same of all columns, in one process."""
    _, targets, _, _, epsilon = inputs[0]
    leaf = pieces.leaf(torch.cat([args[0] for args in inputs], 1))
    loss = nn.functional.cross_entropy(leaf, targets, label_smoothing=epsilon)
    loss.backward()
    parts = leaf.grad.split([args[0].shape[1] for args in inputs], 1)
    return [{"loss": loss.detach(), "gradient of the logits": part} for part in parts]


def judge(seen):
    """More was sent than four numbers a place, by whatever collective."""
    n, places = len(seen.inputs), len(seen.inputs[0][1])
    if n > 1 and max(seen.sent) > (n - 1) * NUMBERS * places * 8:
        return (
            f"The numbers are right. But a rank sends {max(seen.sent):,} bytes for {places} "
            "places: more than four numbers for each. Let the logits stay where they are."
        )


def case(what, *sizes, places=5, scale=1.0, epsilon=0.1, offset=0.0, targets=None):
    """Rank r has sizes[r] columns of the vocabulary."""

    def make(rank, world_size):
        first, vocabulary = sum(sizes[:rank]), sum(sizes)
        whole = scale * pieces.drawn(3, places, vocabulary) + offset
        generator = torch.Generator().manual_seed(1)
        drawn = torch.randint(vocabulary, (places,), generator=generator)
        mine = whole[:, first : first + sizes[rank]].clone()
        wanted = drawn if targets is None else drawn * 0 + targets
        return mine, wanted, first, vocabulary, epsilon

    return Case(what, make, ranks=len(sizes))


def as_one_function(logits, targets, first, vocabulary, epsilon):
    """With its gradient written down."""
    is_there = targets[:, None] == first + torch.arange(logits.shape[1])

    class Loss(torch.autograd.Function):
        @staticmethod
        def forward(ctx, logits):
            largest = logits.max(1).values
            dist.all_reduce(largest, dist.ReduceOp.MAX)
            exp = (logits - largest[:, None]).exp()
            own_target = logits.masked_fill(~is_there, 0).sum(1)
            sums = torch.stack([exp.sum(1), own_target, logits.sum(1)])
            dist.all_reduce(sums)
            ctx.save_for_backward(exp / sums[0][:, None])
            mean = (1 - epsilon) * sums[1] + epsilon * sums[2] / vocabulary
            return (largest + sums[0].log() - mean).mean()

        @staticmethod
        def backward(ctx, gradient):
            (p,) = ctx.saved_tensors
            rest = p - (1 - epsilon) * is_there.to(p) - epsilon / vocabulary
            return gradient * rest / len(p)

    return Loss.apply(logits)


def gathers_the_logits(logits, targets, first, vocabulary, epsilon):
    boxes = [torch.empty_like(logits) for _ in range(dist.get_world_size())]
    dist.all_gather(boxes, logits.detach())
    boxes[dist.get_rank()] = logits
    return nn.functional.cross_entropy(torch.cat(boxes, 1), targets, label_smoothing=epsilon)


SMOOTH = "(1 - epsilon) * of_target + epsilon * of_all / vocabulary"
LARGEST = "    largest = logits.detach().amax(-1)\n"
SHIFTED = "shifted = logits - largest[:, None]"
AT_TARGET = "column[:, None])[:, 0].where(mine, 0)"
MEANS_OF_ALL = "(of_all - (dist.get_world_size() - 1) * total.log().detach())"
NO_TARGET = "not ((first <= targets) & (targets < first + logits.shape[1])).any()"

exercise = Exercise(
    cases=[
        case("3 columns on each of the ranks", 3, 3, 3, 3),
        case("1, 4 and 2 columns", 1, 4, 2),
        case("all targets in the last rank's part", 4, 3, epsilon=0.3, targets=6),
        case("epsilon is 0", 2, 3, epsilon=0.0),
        case("logits times 10000", 3, 2, 2, scale=1e4),
        case("logits around -10000", 3, 4, offset=-1e4),
        case("12 columns on each, and 40 places", 12, 12, 12, 12, places=40),
        case("alone", 6),
    ],
    twin=twin,
    drive=drive,
    judge=judge,
    trace=True,
    tolerance=pieces.CLOSE,
    hint="-log p is log(sum of exp) minus the logit. Its mean over the vocabulary needs one more "
    "sum than the chapter's loss. What has a rank to add for a target that is not its own?",
    also_right=[as_one_function],
    mistakes=[
        Mistake(
            "A target is the number of a column of the whole vocabulary. Where does it stand in "
            "this rank's part, and what if it does not?",
            {"(targets - first).where(mine, 0)": "targets - first"},
            {"(targets - first).where(mine, 0)": "targets"},
            happened="error",
            test=lambda seen: "out of bounds" in seen.error or "out of range" in seen.error,
        ),
        Mistake(
            "`dist.all_reduce` writes into the tensor that it is given, and returns nothing.",
            {"summed(sums)": "dist.all_reduce(sums)"},
            happened="error",
            test=lambda seen: "NoneType" in seen.error,
        ),
        Mistake(
            "Something was changed in place that autograd still needs. Make a new tensor of it.",
            {SHIFTED: "shifted = logits.sub_(largest[:, None])"},
            happened="error",
            test=lambda seen: "inplace operation" in seen.error or "in-place" in seen.error,
        ),
        Mistake(
            "The ranks have different numbers of columns, and not all have the target. What each "
            "gives to a collective has one number for each place, on every rank.",
            gathers_the_logits,
            happened=("stuck", "died", "error"),
            test=lambda seen: len({args[0].shape for args in seen.inputs}) > 1,
        ),
        Mistake(
            "Every rank must take part in every collective, in the same order.",
            {LARGEST: f"    if {NO_TARGET}:\n        return 0 * logits.sum()\n{LARGEST}"},
            happened=("stuck", "died"),
        ),
        Mistake(
            "The loss is a tensor, from which backward can start.",
            {".mean()": ".mean().item()"},
            test=lambda seen: not isinstance(seen.results[0], dict),
        ),
        Mistake(
            "The loss is one number, the mean over the places.",
            {".mean()": ""},
            test=lambda seen: seen.found in ("shape", "dtype"),
        ),
        Mistake(
            "exp of 10000 is too large a number for any type, and exp of -10000 is 0, whose "
            "logarithm is none. What may be subtracted from all logits of a place?",
            {SHIFTED: "shifted = logits"},
        ),
        Mistake("That is the cross-entropy without smoothing.", {SMOOTH: "of_target"}),
        Mistake(
            "epsilon is spread over all tokens of the vocabulary, the target included.",
            {"of_all / vocabulary": "(of_all - of_target) / (vocabulary - 1)"},
        ),
        Mistake(
            "The target has the share 1 - epsilon, and the mean of all has epsilon.",
            {SMOOTH: "epsilon * of_target + (1 - epsilon) * of_all / vocabulary"},
        ),
        Mistake("That is the sum over the places; the mean is asked for.", {".mean()": ".sum()"}),
        Mistake(
            "epsilon goes to the mean over the vocabulary, and this is the sum over it.",
            {"of_all / vocabulary": "of_all"},
            {"of_all / vocabulary": "(of_all - (vocabulary - 1) * total.log())"},
        ),
        Mistake(
            "The target's own part has the share 1 - epsilon.",
            {"(1 - epsilon) * of_target": "of_target"},
            {"(1 - epsilon) * of_target": "of_target - epsilon * total.log()"},
        ),
        Mistake(
            "The mean over the vocabulary is not the sum of the ranks' means. How many columns are "
            "there altogether?",
            {"shifted.sum(-1)]": "shifted.mean(-1)]", "of_all / vocabulary": "of_all"},
            {
                "shifted.sum(-1)]": "shifted.mean(-1)]",
                "of_all / vocabulary": MEANS_OF_ALL,
            },
        ),
        Mistake(
            "Each rank has subtracted its own largest logit, and then they add up what does not "
            "belong together. All must subtract the same.",
            {"    dist.all_reduce(largest, dist.ReduceOp.MAX)\n": ""},
        ),
        Mistake(
            "What has a rank to add for a target that is not its own? Not what stands in some "
            "other column.",
            {AT_TARGET: "column[:, None])[:, 0]"},
            {AT_TARGET: "column[:, None])[:, 0].where(mine, -torch.inf)"},
        ),
        Mistake(
            "The ranks come to different losses. Each sum over the vocabulary, and the largest "
            "logit, too, is over the columns of all ranks.",
            {"summed(sums)": "sums"},
            test=lambda seen: (
                not all(
                    torch.allclose(got["loss"], seen.results[0]["loss"]) for got in seen.results
                )
            ),
        ),
        Mistake(
            "The loss is right, but nothing leads back from it to the logits: is a part of them "
            "detached, or summed by what autograd does not know?",
            {"summed(sums)": "summed(sums.detach())"},
        ),
        Mistake(
            "The loss is right, and the gradient is as many times too large as there are ranks: "
            "the sum's backward is to hand on the gradient as it is. `summed` does that.",
            {"import summed": "import copied, summed", "summed(sums)": "copied(summed(sums))"},
        ),
        Mistake(
            "The largest logit, and three sums: of exp, of the logits, and of the target's logit.",
            {LARGEST: f"    summed(torch.cat([logits] * dist.get_world_size(), 1))\n{LARGEST}"},
            test=lambda seen: seen.found == "judge",
        ),
        Mistake(
            "The loss is right, and its gradient is not. Do all sums that lead to it go through "
            "`summed`, the one of the target's logits, too? And is the largest logit, which only "
            "keeps the numbers small, detached?",
            {"at_target, ": "at_target.detach(), "},
            {"logits.detach()": "logits"},
            {SHIFTED: f"{SHIFTED} - logits.amax(-1, True) + logits.detach().amax(-1, True)"},
            test=lambda seen: all(
                torch.allclose(got["loss"], want["loss"], rtol=1e-6)
                for got, want in zip(seen.results, seen.expected)
            ),
        ),
    ],
)
