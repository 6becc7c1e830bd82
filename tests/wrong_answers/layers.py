"""Wrong answers to the exercises on fewest owners, and on clipping what nobody holds."""

import torch
import torch.distributed as dist

from wrong_answers import wrong

# fewest_owners ---------------------------------------------------------------------------------


def _cut(nbytes, limit, too_much=lambda held, size, limit: held + size > limit):
    bounds, held = [0], 0
    for i, size in enumerate(nbytes):
        if i and too_much(held, size, limit):
            bounds.append(i)
            held = 0
        held += size
    return [*bounds, len(nbytes)]


@wrong("fewest_owners", says=["no cut helps", "ValueError"])
def never_raises(nbytes, limit):
    return _cut(nbytes, limit)


@wrong("fewest_owners", says=["should raise ValueError, and returned a string"])
def returns_the_name_of_the_error(nbytes, limit):
    return "ValueError" if max(nbytes) > limit else _cut(nbytes, limit)


@wrong("fewest_owners", says=["the last layer is too large", "no cut helps"])
def looks_at_the_first_layer_only(nbytes, limit):
    if nbytes[0] > limit:
        raise ValueError("too large")
    return _cut(nbytes, limit)


@wrong("fewest_owners", says=["just `limit` bytes"])
def leaves_a_byte(nbytes, limit):
    if max(nbytes) > limit:
        raise ValueError("too large")
    return _cut(nbytes, limit, lambda held, size, limit: held + size >= limit)


@wrong("fewest_owners", says=["has just `limit` bytes does"])
def refuses_what_just_fits(nbytes, limit):
    if max(nbytes) >= limit:
        raise ValueError("too large")
    return _cut(nbytes, limit)


@wrong("fewest_owners", says=["more than `limit` bytes", "before it is taken in"])
def notices_too_late(nbytes, limit):
    if max(nbytes) > limit:
        raise ValueError("too large")
    return _cut(nbytes, limit, lambda held, size, limit: held > limit)


@wrong("fewest_owners", says=["begin with 0, rise, and end"])
def no_end(nbytes, limit):
    if max(nbytes) > limit:
        raise ValueError("too large")
    return _cut(nbytes, limit)[:-1]


@wrong("fewest_owners", says=["another cut", "as many layers as they can"])
def from_the_back(nbytes, limit):
    if max(nbytes) > limit:
        raise ValueError("too large")
    n = len(nbytes)
    return [n - i for i in reversed(_cut(nbytes[::-1], limit))]


@wrong("fewest_owners", says=["more stages than it takes"])
def one_layer_each(nbytes, limit):
    if max(nbytes) > limit:
        raise ValueError("too large")
    return list(range(len(nbytes) + 1))


# clip_stages -----------------------------------------------------------------------------------


def _there(parameters):
    return [p for p in parameters if p.grad is not None]


def _sum_over_ranks(number):
    total = torch.tensor(float(number), dtype=torch.float64)
    dist.all_reduce(total)
    return total.item()


def _squares(parameters):
    return sum(p.grad.double().square().sum().item() for p in _there(parameters))


def _scale(parameters, norm, max_norm):
    if norm > max_norm:
        for p in _there(parameters):
            p.grad *= max_norm / norm


@wrong("clip_stages", says=["this rank's own gradients"])
def each_for_itself(parameters, shared, max_norm):
    return torch.nn.utils.clip_grad_norm_(_there(parameters), max_norm).item()


@wrong("clip_stages", says=["their squares"])
def adds_norms(parameters, shared, max_norm):
    counted = [p for p in parameters if p is not shared or dist.get_rank() == 0]
    norm = _sum_over_ranks(_squares(counted) ** 0.5)
    _scale(parameters, norm, max_norm)
    return norm


@wrong("clip_stages", says=["a shared weight", "counted twice"])
def counts_twice(parameters, shared, max_norm):
    norm = _sum_over_ranks(_squares(parameters)) ** 0.5
    _scale(parameters, norm, max_norm)
    return norm


@wrong("clip_stages", says=["a shared weight", "counted by neither"])
def counts_neither(parameters, shared, max_norm):
    norm = _sum_over_ranks(_squares(p for p in parameters if p is not shared)) ** 0.5
    _scale(parameters, norm, max_norm)
    return norm


@wrong("clip_stages", says=["a shared weight", "scaled on both"])
def scales_one_copy(parameters, shared, max_norm):
    counted = [p for p in parameters if p is not shared or dist.get_rank() == 0]
    norm = _sum_over_ranks(_squares(counted)) ** 0.5
    _scale(counted, norm, max_norm)
    return norm


@wrong("clip_stages", says=["below max_norm", "nothing is to be changed"])
def always_scales(parameters, shared, max_norm):
    counted = [p for p in parameters if p is not shared or dist.get_rank() == 0]
    norm = _sum_over_ranks(_squares(counted)) ** 0.5
    for p in _there(parameters):
        p.grad *= max_norm / norm
    return norm


@wrong("clip_stages", says=["has None in `.grad`"])
def expects_all_gradients(parameters, shared, max_norm):
    counted = [p for p in parameters if p is not shared or dist.get_rank() == 0]
    norm = _sum_over_ranks(sum(p.grad.square().sum().item() for p in counted)) ** 0.5
    _scale(parameters, norm, max_norm)
    return norm


@wrong("clip_stages", says=["a rank without any", "Every rank must take part"])
def leaves_early(parameters, shared, max_norm):
    if not _there(parameters):
        return 0.0
    counted = [p for p in parameters if p is not shared or dist.get_rank() == 0]
    norm = _sum_over_ranks(_squares(counted)) ** 0.5
    _scale(parameters, norm, max_norm)
    return norm


@wrong("clip_stages", says=["scaled in place"])
def scales_copies(parameters, shared, max_norm):
    counted = [p for p in parameters if p is not shared or dist.get_rank() == 0]
    norm = _sum_over_ranks(_squares(counted)) ** 0.5
    if norm > max_norm:
        for p in _there(parameters):
            _ = p.grad * (max_norm / norm)
    return norm


@wrong("clip_stages", says=["the square of the norm"])
def no_root(parameters, shared, max_norm):
    counted = [p for p in parameters if p is not shared or dist.get_rank() == 0]
    norm = _sum_over_ranks(_squares(counted))
    _scale(parameters, norm, max_norm)
    return norm


@wrong("clip_stages", says=["equal gradients, nothing shared"])
def drops_what_is_equal(parameters, shared, max_norm):
    """Takes gradients that are equal for those of the shared weight."""
    first = [p.grad.clone() for p in _there(parameters)] if dist.get_rank() == 0 else None
    box = [first]
    dist.broadcast_object_list(box, src=0)
    theirs = [] if dist.get_rank() == 0 else box[0]
    counted = [
        p for p in _there(parameters) if not any(torch.equal(p.grad, grad) for grad in theirs)
    ]
    norm = _sum_over_ranks(_squares(counted)) ** 0.5
    _scale(parameters, norm, max_norm)
    return norm
