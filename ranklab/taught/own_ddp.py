# Generated from book/12_own_ddp.md by `make forms`: edit the manuscript, not this file.

"""Your own DDP: communication behind backward: what chapter 12_own_ddp teaches."""

import contextlib
import weakref

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import Variable


def gradient_of(model):
    """All gradients of a model in one flat tensor."""
    return torch.cat([p.grad.flatten() for p in model.parameters()])


class Bucket:
    """Gradients that travel together: a buffer, and a view for each of them."""

    def __init__(self, parameters):
        self.parameters = parameters
        sizes = [p.numel() for p in parameters]
        # Behind the gradients, a number for each: how many ranks have it.
        self.buffer = parameters[0].detach().new_zeros(sum(sizes) + len(sizes))
        *parts, self.present = self.buffer.split([*sizes, len(sizes)])
        self.views = [part.view(p.shape) for part, p in zip(parts, parameters)]

    def begin(self):
        self.missing, self.work = len(self.parameters), None
        self.present.fill_(1)

    def put(self, i, n):
        """Put 1 / n of parameter i's gradient in; .grad is then a view."""
        p = self.parameters[i]
        self.missing -= 1
        if p.grad is None:
            self.views[i].zero_()
            self.present[i] = 0
        else:
            torch.mul(p.grad, 1 / n, out=self.views[i])
            p.grad = self.views[i]


def in_buckets(parameters, bucket_bytes, first_bytes=None):
    """Deal parameters into Buckets, in order, each of one type and device.

    A bucket is closed as soon as it has `bucket_bytes` bytes, the first one
    with `first_bytes`.
    """
    full, filling = [], {}
    for p in parameters:
        some = filling.setdefault((p.dtype, p.device), [])
        some.append(p)
        limit = bucket_bytes if full or first_bytes is None else first_bytes
        if sum(q.nbytes for q in some) >= limit:
            full.append(filling.pop((p.dtype, p.device)))
    return [Bucket(some) for some in [*full, *filling.values()]]


class Dealt:
    """The trained parameters of a model, dealt into buckets."""

    def __init__(self, parameters, limits=(512 << 10,), group=None, all_reduce=dist.all_reduce):
        self.trained = [p for p in parameters if p.requires_grad][::-1]
        self.limits, self.group, self.all_reduce = limits, group, all_reduce
        self.n = dist.get_world_size(group)
        self.deal(self.trained)

    def deal(self, order):
        """Deal the parameters into buckets, in this order."""
        self.buckets = in_buckets(order, *self.limits)
        self.place = {
            p: (bucket, i) for bucket in self.buckets for i, p in enumerate(bucket.parameters)
        }


class InBuckets(Dealt):
    """Averages gradients in buckets, each of which is sent when it is full."""

    def begin(self):
        for bucket in self.buckets:
            bucket.begin()

    def put(self, p):
        """Put p's gradient in, and send its bucket if that was the last."""
        bucket, i = self.place[p]
        bucket.put(i, self.n)
        if not bucket.missing:
            self.send(bucket)

    def send(self, bucket):
        bucket.work = self.all_reduce(bucket.buffer, group=self.group, async_op=True)

    def finish(self):
        for bucket in self.buckets:
            if bucket.work:
                bucket.work.wait()


class Overlapped(InBuckets):
    """Puts every gradient in while backward computes the others."""

    def __init__(self, *args, **how):
        super().__init__(*args, **how)
        self.hooks = [p.register_post_accumulate_grad_hook(self.on_gradient) for p in self.trained]

    def on_gradient(self, p):
        """Autograd calls it: the gradient of p is complete."""
        self.put(p)


def overlapped_seconds(bucket_bytes, forward, backward, alpha, beta, core=(0.0, float("inf"))):
    """Seconds of a step in which such buckets are sent during backward.

    forward, backward: seconds of computing; gradients arrive evenly during
    backward. An all-reduce takes alpha + bytes / beta seconds. core: the same
    two numbers for what it takes of the core that computes.
    """
    there, free, busy = 0, 0.0, 0.0
    for nbytes in bucket_bytes:
        there += nbytes
        full = forward + backward * there / sum(bucket_bytes) + busy
        free = max(full, free) + alpha + nbytes / beta
        busy += core[0] + nbytes / core[1]
    return max(free, forward + backward + busy)


class InOrder(Overlapped):
    """A bucket that is full leaves when all before it have left."""

    def begin(self):
        super().begin()
        self.next = 0

    def send(self, _):
        while self.next < len(self.buckets) and not self.buckets[self.next].missing:
            super().send(self.buckets[self.next])
            self.next += 1


class Complete(InOrder):
    """Sends zeros for gradients that did not come until backward ended."""

    def begin(self):
        super().begin()
        self.arrived = {}

    def on_gradient(self, p):
        if not self.arrived:  # the first: let autograd call finish at the end
            Variable._execution_engine.queue_callback(self.finish)
        self.arrived[p] = True
        self.put(p)

    def finish(self):
        self.absent = {p for p in self.trained if p not in self.arrived}
        for p in self.absent:
            self.put(p)
        super().finish()
        for bucket, i in map(self.place.get, self.absent):
            if bucket.present[i]:  # some rank has one
                bucket.parameters[i].grad = bucket.views[i]


def refuse_after_failure():
    raise RuntimeError(
        "A backward failed while its gradients were averaged, and its "
        "messages may be under way. Wrap the model again, on all ranks."
    )


def refuse_late_gradient():
    raise RuntimeError(
        "A gradient came after its averaging, and would stay this rank's own. "
        "With checkpoint(), use use_reentrant=False."
    )


class Armed(Complete):
    """Averages in the backward that it is armed for, and in no other."""

    state, absent = "idle", ()

    def arm(self):
        """Make the next backward average: on all ranks of the group."""
        if self.state == "averaging":
            refuse_after_failure()
        self.begin()
        self.state, self.absent = "armed", ()

    def on_gradient(self, p):
        again = self.state == "averaging" and p in self.arrived
        if again or p in self.absent:
            refuse_late_gradient()
        if self.state != "idle":
            self.state = "averaging"
            super().on_gradient(p)

    def finish(self):
        super().finish()
        self.state = "idle"


class Reducer(Armed):
    """Averages, in buckets in the order of arrival: after Li et al. (2020)."""

    learning = True

    def finish(self):
        super().finish()
        if self.learning:
            self.learn()

    def learn(self):
        """Deal anew, in the order in which rank 0's gradients arrived."""
        number = {p: i for i, p in enumerate(self.trained)}
        order = [[number[p] for p in self.arrived]]
        dist.broadcast_object_list(order, group_src=0, group=self.group)
        arrived = [self.trained[i] for i in order[0]]
        self.deal(dict.fromkeys([*arrived, *self.trained]))
        self.learning = False

    def send_zeros(self):
        """Take part in a backward of the others, without gradients."""
        self.arm()
        for p in self.trained:
            p.grad = None
        self.finish()


def demand_equal(module, group=None):
    """Raise ValueError, on every rank, where a rank's model is not rank 0's.

    Compared are the names, shapes and types of its tensors, their order, and
    which are trained; one at least must be.
    """
    tensors = [*module.named_parameters(), *module.named_buffers()]
    mine = [
        f"{name} {tuple(t.shape)} {t.dtype}" + ", trained" * t.requires_grad for name, t in tensors
    ]
    of_rank = [None] * dist.get_world_size(group)
    dist.all_gather_object(of_rank, mine, group=group)
    for r, theirs in enumerate(of_rank):
        for k, (a, b) in enumerate(zip([*of_rank[0], "missing"], [*theirs, "missing"])):
            if a != b:
                raise ValueError(
                    f"The ranks' models differ. Tensor {k} is {a} on rank 0, "
                    f"and {b} on rank {r}. Build the same model on every rank, "
                    "its layers in the same order."
                )
    if not any(p.requires_grad for p in module.parameters()):
        raise ValueError("No parameter of this model is trained: there is nothing to average.")


def broadcast_all(tensors, src=0, group=None):
    """Give all ranks the tensors of rank src of the group, in place."""
    kinds = {}
    for t in tensors:
        kinds.setdefault((t.dtype, t.device), []).append(t.detach())
    for same in kinds.values():
        flat = torch.cat([t.flatten() for t in same])
        dist.broadcast(flat, group_src=src, group=group)
        if dist.get_rank(group) != src:
            for t, values in zip(same, flat.split([t.numel() for t in same])):
                t.copy_(values.view_as(t))


def remove_all(hooks):
    """Hooks go with their wrapper: else they live as long as the model."""
    for hook in hooks:
        hook.remove()


class Replicated(nn.Module):
    """A replica of `module` on each rank, whose backward averages."""

    def __init__(
        self,
        module,
        group=None,
        all_reduce=dist.all_reduce,
        bucket_bytes=25 << 20,
        first_bytes=1 << 20,
    ):
        super().__init__()
        self.module, self.group, self.sync = module, group, True
        demand_equal(module, group)
        broadcast_all([*module.parameters(), *module.buffers()], 0, group)
        limits = bucket_bytes, first_bytes
        self.reducer = Reducer(module.parameters(), limits, group, all_reduce)
        weakref.finalize(self, remove_all, self.reducer.hooks)

    def forward(self, *inputs, **named):
        """Call the module. Its backward averages, if gradients are wanted."""
        averages = self.sync and torch.is_grad_enabled()
        self.before(averages)
        output = self.module(*inputs, **named)
        if averages:
            self.reducer.arm()
        elif torch.is_grad_enabled():
            self.reducer.absent = ()  # whatever comes now is welcome
        return output


class Shared(Replicated):
    """With no_sync(), and with buffers that are rank 0's on all ranks."""

    ahead, buffers_due = 0, True

    def before(self, averages):
        """Give all the buffers, if the forward before was to average."""
        if self.buffers_due:
            broadcast_all(self.module.buffers(), self.ahead, self.group)
        self.buffers_due = averages

    @contextlib.contextmanager
    def no_sync(self):
        """Forwards in here leave their gradients, to be added to later ones."""
        before, self.sync = self.sync, False
        try:
            yield
        finally:
            self.sync = before


class OwnDDP(Shared):
    """Data parallelism: a replica of `module` on each rank of a group.

    All start with rank 0's weights. After backward() each .grad is the mean
    over the ranks (untouched, unless one used its parameter) and a view into a
    bucket: clone it to keep it. all_reduce: called as dist.all_reduce is, with
    async_op; behind the gradients stands how many ranks have each. Raises
    ValueError where models differ or nothing is trained.
    """

    joining = False

    def before(self, averages):
        if self.joining:
            self._anyone_goes_on(1 + averages)
        super().before(averages)

    @contextlib.contextmanager
    def join(self, throw_on_early_termination=False):
        """Who has no more batches goes on with zeros; all end with the weights
        of one that went on longest. Or, to throw, all raise RuntimeError then.
        """
        self.joining, self.throw = True, throw_on_early_termination
        try:
            yield
            while what := self._anyone_goes_on(0):
                super().before(what == 2)
                if what == 2:
                    self.reducer.send_zeros()
            everything = [*self.module.parameters(), *self.module.buffers()]
            broadcast_all(everything, self.ahead, self.group)
        finally:
            self.joining, self.ahead = False, 0

    def _anyone_goes_on(self, mine):
        """Tell what I do: 2, a step that averages; 1, a forward; 0, no more.
        Return what those do who go on; the last of them is `ahead`.
        """
        doing = next(self.module.parameters()).new_zeros(self.reducer.n)
        doing[dist.get_rank(self.group)] = mine
        dist.all_reduce(doing, group=self.group)
        there = [r for r, what in enumerate(doing.tolist()) if what]
        done = [r for r, what in enumerate(doing.tolist()) if not what]
        if self.throw and there and done:
            raise RuntimeError(f"No more batches on ranks {done}, but on {there}.")
        self.ahead = max(there, default=self.ahead)
        return int(max(doing))


class Awkward(nn.Module):
    """A model that has what wrappers stumble over. It returns a dict."""

    def __init__(self):
        super().__init__()
        self.first, self.twice = nn.Linear(8, 16), nn.Linear(16, 16)
        self.frozen = nn.Linear(16, 16).requires_grad_(False)
        self.sometimes, self.unused = nn.Linear(16, 16), nn.Linear(3, 3)
        self.tied, self.last = nn.Linear(16, 16), nn.Linear(16, 8, bias=False)
        self.tied.weight = self.twice.weight

    def forward(self, x, detour=False):
        x = torch.tanh(self.first(x))
        x = torch.tanh(self.twice(torch.tanh(self.twice(x))))
        x = torch.tanh(self.tied(self.frozen(x)))
        return {"y": self.last(x + self.sometimes(x) if detour else x)}


def ring_of(size, alpha, beta):
    """Latency and bandwidth of an all-reduce around a ring of `size` ranks.

    alpha (s), beta (bytes/s): those of a message between two neighbors.
    """
    rounds = 2 * (size - 1)
    return rounds * alpha, beta * size / rounds if rounds else float("inf")
