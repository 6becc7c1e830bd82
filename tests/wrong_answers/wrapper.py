"""Wrong answers to the exercises on buckets, and on an average now and then."""

import torch
import torch.distributed as dist

from wrong_answers import wrong

# deal ------------------------------------------------------------------------------------------


@wrong("deal", says=["from the last one to the first"])
def in_order_of_registration(nbytes, first_bytes, bucket_bytes):
    buckets, filling = [], []
    for k in range(len(nbytes)):
        filling.append(k)
        if sum(nbytes[j] for j in filling) >= (bucket_bytes if buckets else first_bytes):
            buckets.append(filling)
            filling = []
    return buckets + [filling] * bool(filling)


@wrong("deal", says=["the last bucket is not full", "Every parameter must be in one bucket"])
def forgets_the_last_ones(nbytes, first_bytes, bucket_bytes):
    buckets, filling, full = [], [], 0
    for k in reversed(range(len(nbytes))):
        filling.append(k)
        full += nbytes[k]
        if full >= (bucket_bytes if buckets else first_bytes):
            buckets.append(filling)
            filling, full = [], 0
    return buckets


@wrong("deal", says=["One of the buckets is empty"])
def an_empty_one_at_the_end(nbytes, first_bytes, bucket_bytes):
    buckets, filling, full = [], [], 0
    for k in reversed(range(len(nbytes))):
        filling.append(k)
        full += nbytes[k]
        if full >= (bucket_bytes if buckets else first_bytes):
            buckets.append(filling)
            filling, full = [], 0
    return [*buckets, filling]


@wrong("deal", says=["closed by `first_bytes`"])
def one_limit_for_all(nbytes, first_bytes, bucket_bytes):
    buckets, filling, full = [], [], 0
    for k in reversed(range(len(nbytes))):
        filling.append(k)
        full += nbytes[k]
        if full >= bucket_bytes:
            buckets.append(filling)
            filling, full = [], 0
    return buckets + [filling] * bool(filling)


@wrong("deal", says=["just as many bytes is full, too"])
def only_when_there_is_more(nbytes, first_bytes, bucket_bytes):
    buckets, filling = [], []
    for k in reversed(range(len(nbytes))):
        filling.append(k)
        if sum(nbytes[j] for j in filling) > (bucket_bytes if buckets else first_bytes):
            buckets.append(filling)
            filling = []
    return buckets + [filling] * bool(filling)


@wrong("deal", says=["or more"])
def never_more_than_the_limit(nbytes, first_bytes, bucket_bytes):
    """Closes a bucket before it would get too large."""
    buckets, filling, full = [], [], 0
    for k in reversed(range(len(nbytes))):
        limit = bucket_bytes if buckets else first_bytes
        if filling and full + nbytes[k] > limit:
            buckets.append(filling)
            filling, full = [], 0
        filling.append(k)
        full += nbytes[k]
    return buckets + [filling] * bool(filling)


@wrong("deal", says=["the last bucket is not full", "Every parameter must be in one bucket"])
def for_the_case_in_the_text(nbytes, first_bytes, bucket_bytes):
    return [[4], [3, 2], [1, 0]]


# average_every ---------------------------------------------------------------------------------


def _every(average, key_of=lambda p: p, register="register_post_accumulate_grad_hook"):
    """An answer with one mistake: average(p, count, every) is done at each complete gradient."""

    def average_every(model, every):
        counts = {}

        def hook(p):
            key = key_of(p)
            counts[key] = counts.get(key, 0) + 1
            average(p, counts[key], every)

        for p in model.parameters():
            if p.requires_grad:
                getattr(p, register)(hook)

    return (average_every,)


def _wrong_every(*says):
    return wrong("average_every", says=says, several=True)


@_wrong_every("what the rank itself has added up so far")
def every_time():
    def average(p, count, every):
        p.grad /= dist.get_world_size()
        dist.all_reduce(p.grad)

    return _every(average)


@_wrong_every("the means are asked for")
def sums():
    def average(p, count, every):
        if count % every == 0:
            dist.all_reduce(p.grad)

    return _every(average)


@_wrong_every("the mean of what *all* of them added up")
def never():
    return _every(lambda p, count, every: None)


@_wrong_every("a count of its own")
def counted_by_shape():
    def average(p, count, every):
        if count % every == 0:
            p.grad /= dist.get_world_size()
            dist.all_reduce(p.grad)

    return _every(average, key_of=lambda p: p.shape)


@_wrong_every("a count of its own")
def counted_together():
    def average(p, count, every):
        if count % every == 0:
            p.grad /= dist.get_world_size()
            dist.all_reduce(p.grad)

    return _every(average, key_of=lambda p: None)


@_wrong_every("times a number", "By what do you divide?")
def divided_by_the_backwards_too():
    def average(p, count, every):
        if count % every == 0:
            p.grad /= dist.get_world_size() * every
            dist.all_reduce(p.grad)

    return _every(average)


@_wrong_every("every .grad after backward 4", "Which counts are to average?")
def averages_once():
    def average(p, count, every):
        if count == every:
            p.grad /= dist.get_world_size()
            dist.all_reduce(p.grad)

    return _every(average)


@_wrong_every("stuck", "Every rank must take part in every all-reduce")
def only_on_rank_0():
    def average(p, count, every):
        if count % every == 0 and dist.get_rank() == 0:
            p.grad /= dist.get_world_size()
            dist.all_reduce(p.grad)

    return _every(average)


@_wrong_every("NoneType", "returns nothing")
def takes_what_is_returned():
    def average(p, count, every):
        if count % every == 0:
            p.grad = dist.all_reduce(p.grad) / dist.get_world_size()

    return _every(average)


@_wrong_every("takes no hook")
def hooks_on_all():
    def average_every(model, every):
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(lambda p: None)

    return (average_every,)


@_wrong_every("A hook of which kind sees .grad")
def sees_only_the_new_part():
    """A tensor's hook is called before .grad is written."""

    def average_every(model, every):
        counts = {}

        def watch(p):
            def hook(new):
                counts[p] = counts.get(p, 0) + 1
                if counts[p] % every:
                    return new
                new = new / dist.get_world_size()
                dist.all_reduce(new)
                return new

            p.register_hook(hook)

        for p in model.parameters():
            if p.requires_grad:
                watch(p)

    return (average_every,)


@_wrong_every("6 are enough")
def asks_every_time():
    def average(p, count, every):
        wanted = torch.tensor([float(count % every == 0)])
        dist.all_reduce(wanted)
        if wanted.item():
            p.grad /= dist.get_world_size()
            dist.all_reduce(p.grad)

    return _every(average)
