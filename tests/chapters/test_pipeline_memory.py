"""What a stage of chapter 17 holds: activations as counted, one message a link, few receives."""

import itertools
import weakref
from collections import Counter
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from happens_before import at_random, drawn, played
from pipelines import MAKERS, N, on, ranks
from torch import nn

from ranklab.taught import pipeline as own

__all__ = ["ranks"]  # a fixture


class Live:
    """How many there are now, and were at most."""

    now = most = 0

    def __init__(self):
        Live.now += 1
        Live.most = max(Live.most, Live.now)
        weakref.finalize(self, Live.end)

    @staticmethod
    def end():
        Live.now -= 1


class Kept(torch.autograd.Function):
    """Does nothing; as long as autograd holds on to it, one more is alive."""

    @staticmethod
    def forward(ctx, x):
        ctx.alive = Live()
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Keep(nn.Module):
    def forward(self, x):
        return Kept.apply(x)


def most_alive(group, schedule, chunks):
    """The most passes through a chunk that autograd holds here at a time, and holds in the end."""
    pieces = [nn.Sequential(nn.Linear(4, 4), Keep()) for _ in range(chunks)]
    worker = own.SplitWorker(pieces, torch.empty(2, 4), lambda y, _: y.square().mean(), group)
    inputs = [torch.ones(2, 4)] * own.size(schedule)[1]
    Live.now = Live.most = 0
    own.run(schedule[dist.get_rank(group)], worker, inputs, inputs)
    return Live.most, Live.now


def schedules_to_count():
    for n in range(1, N + 1):
        for make in MAKERS.values():
            for micro_batches in (1, n, 2 * n + 1):
                yield n, 1, make(n, micro_batches)
        if n > 1:
            yield n, 2, own.interleaved(n, 2 * n, 2)
            yield n, 3, own.interleaved(n, n, 3)
            yield n, 2, at_random(n, 3, 2, drawn(n))


def test_autograd_holds_as_many_activations_as_were_counted(ranks):
    for n, chunks, schedule in schedules_to_count():
        bare = all(len(kind) == 1 for program in schedule for kind, *_ in program)
        full = own.with_messages(schedule) if bare else schedule
        found = on(ranks, n, most_alive, full, chunks)
        assert [most for most, _ in found] == own.check_schedule(schedule)
        assert [most for most, _ in found] == played(full, 1, drawn(0))[1]
        assert [left for _, left in found] == [0] * n


class Handle:
    """Of a send or a receive: it counts for its link until it has been waited for."""

    def __init__(self, work, link, under_way, most):
        self.work, self.link, self.under_way = work, link, under_way
        under_way[link] += 1
        most[link] = max(most[link], under_way[link])

    def wait(self):
        self.work.wait()
        self.under_way[self.link] -= 1


def most_under_way(group, schedule, chunks):
    """The most messages under way on each link of this rank, and how many are left in the end."""
    pieces = [nn.Linear(4, 4) for _ in range(chunks)]
    worker = own.SplitWorker(pieces, torch.empty(2, 4), lambda y, _: y.square().mean(), group)
    inputs = [torch.ones(2, 4)] * own.size(schedule)[1]
    under_way, most, isend = Counter(), Counter(), dist.isend

    def counted(tensor, *, group, group_dst, tag):
        work = isend(tensor, group=group, group_dst=group_dst, tag=tag)
        return Handle(work, (group_dst, tag), under_way, most)

    with mock.patch.object(dist, "isend", counted):
        own.run(own.with_messages(schedule)[dist.get_rank(group)], worker, inputs, inputs)
    return dict(most), under_way.total(), len(worker.under_way)


def test_of_what_was_sent_a_link_keeps_one_message_and_none_after_the_step(ranks):
    for n, make in itertools.product((2, 4), [*MAKERS.values(), own.interleaved]):
        chunks = 2 if make is own.interleaved else 1
        schedule = make(n, 2 * n, chunks) if chunks > 1 else make(n, 2 * n)
        found = on(ranks, n, most_under_way, schedule, chunks)
        assert all(set(most.values()) == {1} for most, *_ in found)
        assert [left for _, *left in found] == [[0, 0]] * n


def most_posted(group, schedule, ahead):
    """Of the receives on this rank: all, the most at a time, those before the first work, left."""
    piece, before = nn.Linear(4, 4), []
    worker = own.Worker([piece], torch.empty(2, 4), lambda y, _: y.mean(), group)
    worker.ahead = ahead
    inputs = [torch.ones(2, 4)] * own.size(schedule)[1]
    posted, most, irecv = Counter(), Counter(), dist.irecv
    piece.register_forward_pre_hook(lambda *_: before.append(posted.total()))

    def counted(tensor, *, group, group_src, tag):
        work = irecv(tensor, group=group, group_src=group_src, tag=tag)
        return Handle(work, "any", posted, most)

    program = own.with_messages(schedule)[dist.get_rank(group)]
    with mock.patch.object(dist, "irecv", counted):
        own.run(program, worker, inputs, inputs)
    receives = sum(kind.startswith("receive") for kind, *_ in program)
    return receives, most.total(), before[0], [posted.total(), len(worker.posted)]


@pytest.mark.parametrize("ahead", [1, 3, own.Worker.ahead, 100])
def test_a_few_receives_are_posted_before_their_turn_and_none_after_the_step(ranks, ahead):
    for make in (own.gpipe, own.one_f_one_b):
        found = on(ranks, 4, most_posted, make(4, 8), ahead)
        for stage, (receives, most, before, left) in enumerate(found):
            assert most == min(ahead, receives)
            assert before == min(ahead, receives - (stage > 0))  # one has been taken by then
            assert left == [0, 0]
