# Generated from book/17_pipeline.md by `make forms`: edit the manuscript, not this file.

"""Filling the bubble: what chapter 17_pipeline teaches."""

import itertools
import time
from collections import defaultdict, deque

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import record_function


def gpipe(stages, micro_batches):
    """A schedule: for each stage a list of instructions. All forwards, then all backwards."""
    numbers = range(micro_batches)
    return [[(kind, k, 0) for kind in "FB" for k in numbers] for _ in range(stages)]


def idle_share(times):
    """The bubble: the share of their time in which the stages do not compute.

    times: of each stage, a list of (instruction, start, end).
    """
    # Computations have names of one letter; messages, which come further down, have longer ones.
    parts = [part for of_stage in times for part in of_stage if len(part[0][0]) == 1]
    whole = max(end for _, _, end in parts) - min(start for _, start, _ in parts)
    return 1 - sum(end - start for _, start, end in parts) / (len(times) * whole)


def parse(text):
    """Instructions from their names: parse("F0 B2.1") is [("F", 0, 0), ("B", 2, 1)]."""
    found = []
    for word in text.split():
        micro_batch, _, chunk = word[1:].partition(".")
        found.append((word[0], int(micro_batch), int(chunk or 0)))
    return found


def name(instruction):
    """An instruction's name, "F0"; the chunk is named if it is not chunk 0: "B2.1"."""
    kind, micro_batch, chunk = instruction
    space = " " * (len(kind) > 1)  # "send activation 0"
    return f"{kind}{space}{micro_batch}" + f".{chunk}" * (chunk > 0)


def size(schedule):
    """(stages, micro-batches, chunks of a stage) of a schedule."""
    _, micro_batches, chunks = zip(*itertools.chain(*schedule))
    return len(schedule), max(micro_batches) + 1, max(chunks) + 1


def computing(program):
    """Without the messages."""
    return [i for i in program if i[0] in {"F", "B", "I", "W"}]


def with_messages(schedule):
    """The schedule with a receive before whatever needs one, and a send after what makes one."""
    stages, _, chunks = size(schedule)
    full = [[] for _ in schedule]
    for stage, program in enumerate(schedule):
        for kind, k, chunk in computing(program):
            piece = chunk * stages + stage  # of the model, whose pieces go round the stages
            first, last = piece == 0, piece == stages * chunks - 1
            if kind == "F" and not first:
                full[stage].append(("receive activation", k, chunk))
            if kind in "BI" and not last:
                full[stage].append(("receive gradient", k, chunk))
            full[stage].append((kind, k, chunk))
            if kind == "F" and not last:
                full[stage].append(("send activation", k, chunk))
            if kind in "BI" and not first:
                full[stage].append(("send gradient", k, chunk))
    return full


class ScheduleError(ValueError):
    """Why a schedule cannot work."""


def neighbor(kind, stage, stages):
    """The other stage of a message: activations go to the next one, gradients to the one before."""
    return (stage + (1 if kind in ("send activation", "receive gradient") else -1)) % stages


class Links:
    """The messages between stages: for each direction and kind a queue, first in, first out.

    seconds: what a message takes; depth: how many a queue can hold (None: any number).
    """

    def __init__(self, stages, seconds, depth):
        self.stages, self.seconds, self.depth = stages, seconds, depth
        self.sent, self.taken = defaultdict(list), defaultdict(list)

    def carry(self, instruction, stage, now):
        """When a send or a receive that begins now is over; None: it has to wait for another."""
        verb, what = instruction[0].split()
        other = neighbor(instruction[0], stage, self.stages)
        link = (what, stage, other) if verb == "send" else (what, other, stage)
        carried = self.send if verb == "send" else self.receive
        return carried(instruction, stage, now, self.sent[link], self.taken[link])

    def send(self, instruction, stage, now, sent, taken):
        if self.depth is not None and len(sent) >= self.depth:
            if len(taken) <= len(sent) - self.depth:
                return None  # no room
            now = max(now, taken[len(sent) - self.depth])
        sent.append((self.received_as(instruction, stage), now + self.seconds))
        return now

    def receive(self, instruction, stage, now, sent, taken):
        if len(taken) == len(sent):
            return None  # nothing is there
        message, arrival = sent[len(taken)]
        if message != instruction:
            raise ScheduleError(
                f"Stage {stage} wants to `{name(instruction)}`, and the next message on that link "
                f"is for `{name(message)}`."
            )
        taken.append(max(now, arrival))
        return taken[-1]

    def received_as(self, instruction, stage):
        """The instruction that takes a message, on the stage to which it goes."""
        kind, micro_batch, chunk = instruction
        piece = chunk * self.stages + stage + (1 if kind == "send activation" else -1)
        return kind.replace("send", "receive"), micro_batch, piece // self.stages


def simulate(
    schedule, forward=1.0, backward_input=1.0, backward_weight=1.0, message=0.0, depth=None
):
    """When every instruction starts and ends: for each stage a list of (instruction, start, end).

    schedule: with messages. Seconds: of the computations of one chunk, and of a message; a whole
    backward takes as long as both of its parts. depth: how many messages a link holds before a
    send has to wait; None: any number. Raises ScheduleError where stages wait for each other, or
    messages come in another order.
    """
    seconds = {"F": forward, "I": backward_input, "W": backward_weight}
    seconds["B"] = backward_input + backward_weight
    links, times, moved = Links(len(schedule), message, depth), [[] for _ in schedule], True
    while moved:
        moved = False
        for stage, (program, done) in enumerate(zip(schedule, times)):
            while len(done) < len(program):
                i, now = program[len(done)], done[-1][2] if done else 0.0
                end = now + seconds[i[0]] if i[0] in seconds else links.carry(i, stage, now)
                if end is None:
                    break
                done.append((i, now, end))
                moved = True
    demand_end(schedule, times)
    return times


def demand_end(schedule, times):
    """Raise ScheduleError if some stage did not come to its end."""
    waits = []
    for stage, (program, done) in enumerate(zip(schedule, times)):
        if len(done) < len(program):
            i = program[len(done)]
            other = neighbor(i[0], stage, len(schedule))
            waits.append(f"stage {stage} waits for stage {other} in `{name(i)}`")
    if waits:
        raise ScheduleError(f"Deadlock: {', '.join(waits)}.")


def demand_like(tensor, like, instruction):
    """Raise ValueError for a tensor that the other side has no room for."""
    found, wanted = ((tuple(t.shape), t.dtype) for t in (tensor, like))
    if found != wanted:
        raise ValueError(
            f"`{name(instruction)}` has a tensor of shape {found[0]} and {found[1]}, and "
            f"`like`, what a receive makes room for, is of shape {wanted[0]} and {wanted[1]}."
        )


class Messenger:
    """A rank as a stage of a pipeline: what it sends and receives, by instructions."""

    ahead = 8  # so many receives are posted at a time

    def __init__(self, like, group=None):
        self.like, self.group = like, group
        self.stage, self.stages = dist.get_rank(group), dist.get_world_size(group)
        whats = ("activation", "gradient")
        self.does = {f"send {what}": self.send for what in whats}
        self.does |= {f"receive {what}": self.receive for what in whats}

    def begin(self, program):
        """Before a step: nothing is there, and the first messages may come."""
        if self.ahead < 1:
            raise ValueError("`ahead` must be at least 1: what a stage waits for has to be posted.")
        self.box, self.under_way, self.posted = {}, {}, {}
        self.to_post = deque(i for i in program if i[0].startswith("receive"))
        for _ in range(self.ahead):
            self.post()

    def send(self, instruction):
        to = neighbor(instruction[0], self.stage, self.stages)
        tensor, tag = self.box.pop(instruction).contiguous(), int("gradient" in instruction[0])
        demand_like(tensor, self.like, instruction)
        self.end_send(to, tag)  # the one before it
        self.under_way[to, tag] = dist.isend(tensor, group=self.group, group_dst=to, tag=tag)

    def end_send(self, to, tag):
        """Wait for what is under way on a link, and forget it."""
        if (to, tag) in self.under_way:
            self.under_way.pop((to, tag)).wait()

    def post(self):
        """Make room for the message of the next receive, if there is one, and let it come."""
        if self.to_post:
            instruction = self.to_post.popleft()
            source = neighbor(instruction[0], self.stage, self.stages)
            tensor, tag = torch.empty_like(self.like), int("gradient" in instruction[0])
            work = dist.irecv(tensor, group=self.group, group_src=source, tag=tag)
            self.posted[instruction] = tensor, work

    def receive(self, instruction):
        tensor, work = self.posted.pop(instruction)
        work.wait()
        self.box[instruction] = tensor.requires_grad_("activation" in instruction[0])
        self.post()


class Worker(Messenger):
    """A rank as a stage of a pipeline: it carries out one instruction after the other.

    chunks: this stage's pieces of the model; chunk c of stage s is piece c * stages + s.
    like: what the pieces hand on for a micro-batch is of this tensor's shape, type and device.
    loss: called with the last piece's output and a micro-batch's targets; the mean over it.
    """

    def __init__(self, chunks, like, loss=None, group=None):
        super().__init__(like, group)
        self.parts, self.loss = [[chunk] for chunk in chunks], loss
        self.does |= {"F": self.forward, "B": self.backward}

    def begin(self, program, inputs, targets):
        """Before a step. Each stage uses what it needs of the micro-batches."""
        super().begin(program)
        self.inputs, self.targets = inputs, targets
        self.kept, self.losses, self.log = {}, [], []

    def ends(self, chunk):
        """Is this chunk the model's first piece? Its last one?"""
        piece = chunk * self.stages + self.stage
        return piece == 0, piece == self.stages * len(self.parts) - 1

    def forward(self, instruction):
        _, micro_batch, chunk = instruction
        which, (first, last) = instruction[1:], self.ends(chunk)
        y = self.inputs[micro_batch] if first else self.box.pop(("receive activation", *which))
        self.kept[which] = []
        for part in self.parts[chunk]:
            x = y.detach().requires_grad_(y.requires_grad)
            y = part(x)
            self.kept[which].append((part, x, y))
        if last:
            loss = self.loss(y, self.targets[micro_batch])
            self.losses.append(loss.item())
            self.kept[which][-1] = part, x, loss / len(self.targets)  # there backward begins
        else:
            self.box["send activation", *which] = y.detach()

    def backward(self, instruction):
        which = instruction[1:]
        gradient = self.box.pop(("receive gradient", *which), None)  # a loss needs none
        for _, x, y in reversed(self.kept.pop(which)):
            if y.requires_grad:
                torch.autograd.backward(y, gradient)
            gradient = x.grad
        self.hand_back(gradient, *which)

    def hand_back(self, gradient, *which):
        """The gradient of a piece's input is for the stage before, if there is one."""
        if not self.ends(which[1])[0]:
            self.box["send gradient", *which] = gradient


def demand_parts(program, parts, what):
    """Raise ValueError unless there are as many micro-batches as in the program, of one size."""
    many, shapes = 1 + max(k for _, k, _ in program), {tuple(part.shape) for part in parts}
    if len(parts) != many or len(shapes) > 1:
        raise ValueError(
            f"The program has {many} micro-batch{'es' * (many > 1)}, and needs as many {what}, all "
            f"of one shape; there are {len(parts)}, of shapes {sorted(shapes)}."
        )


def demand_known(program, worker):
    """Raise ValueError for an instruction that a worker does not know, before it sends anything."""
    for i in program:
        if i[0] not in worker.does:
            raise ValueError(f"A {type(worker).__name__} cannot do `{name(i)}`.")


def run(program, worker, inputs, targets):
    """Forward and backward of a step: carry out a stage's program, messages included.

    inputs, targets: lists of micro-batches, of equal size; the first ones are needed on the stage
    of the first piece, the others on that of the last one. Gradients of the mean loss are added to
    .grad. Returns the losses of the micro-batches, in the program's order, on the rank of the last
    piece, [] on others. worker.log: (instruction, start, end), in seconds since the step's start.
    After an error in a step the group is of no more use: receives are still posted in it.
    """
    demand_known(program, worker)
    if worker.ends(0)[0]:
        demand_parts(program, inputs, "inputs")
    if worker.ends(len(worker.parts) - 1)[1]:
        demand_parts(program, targets, "targets")
    worker.begin(program, inputs, targets)
    zero = time.perf_counter()
    for instruction in program:
        start = time.perf_counter() - zero
        with record_function(name(instruction)):  # its name in a profile
            worker.does[instruction[0]](instruction)
        worker.log.append((instruction, start, time.perf_counter() - zero))
    for link in list(worker.under_way):
        worker.end_send(*link)
    return worker.losses


class Nap(torch.autograd.Function):
    """The identity. It takes some seconds, and so does its gradient."""

    @staticmethod
    def forward(ctx, x, forward, backward):
        time.sleep(forward)
        ctx.seconds = backward
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.seconds)
        return gradient.clone(), None, None


class Napping(nn.Module):
    """A piece whose work takes fixed times: forward, gradient of the input, of the weight."""

    def __init__(self, forward, backward_input, backward_weight):
        super().__init__()
        self.seconds = forward, backward_input, backward_weight
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        forward, backward_input, backward_weight = self.seconds
        weight = Nap.apply(self.weight, 0, backward_weight)
        return Nap.apply(x, forward, backward_input) + weight


def held(program):
    """The most activations that a stage holds at a time: one for a micro-batch in a chunk."""
    most = now = 0
    for kind, _, _ in program:
        now += kind == "F"
        most = max(most, now)
        now -= kind in ("B", "W")
    return most


def alternating(forwards, backwards, warm_up):
    """Some forwards to warm up, then a forward and a backward in turn, then what is left."""
    pairs = zip(forwards[warm_up:], backwards)
    steady = [i for pair in pairs for i in pair]
    return [*forwards[:warm_up], *steady, *backwards[len(forwards[warm_up:]) :]]


def one_f_one_b(stages, micro_batches):
    """1F1B: as many forwards to warm up as there are stages behind it, then alternates."""
    forwards, backwards = ([(kind, k, 0) for k in range(micro_batches)] for kind in "FB")
    return [alternating(forwards, backwards, stages - stage - 1) for stage in range(stages)]


def needs(instruction, first, last):
    """What must stand before an instruction in its program: of each list, one.

    first, last: is its piece the first one of the model, the last one?
    """
    kind, *which = instruction
    forward, backward = [("F", *which)], [("B", *which), ("I", *which)]
    if kind in "BI":
        return [forward] if last else [forward, [("receive gradient", *which)]]
    return {
        "F": [] if first else [[("receive activation", *which)]],
        "W": [[("I", *which)]],
        "send activation": [forward],
        "send gradient": [backward],
    }.get(kind, [])


def check_instructions(stage, program):
    """Raise ScheduleError for what is no instruction, or comes twice."""
    messages = itertools.product(("send", "receive"), ("activation", "gradient"))
    kinds, seen = {*"FBIW", *map(" ".join, messages)}, set()
    for i in program:
        if i[0] not in kinds or min(i[1:]) < 0:
            raise ScheduleError(f"Stage {stage} has no use for `{name(i)}`.")
        if i in seen:
            raise ScheduleError(f"Stage {stage}: `{name(i)}` comes twice.")
        seen.add(i)


def check_program(stage, program, stages, micro_batches, chunks):
    """Raise ScheduleError unless a stage does all that it must, and after what it needs."""
    done = set()
    for i in program:
        piece = i[2] * stages + stage
        for some in needs(i, piece == 0, piece == stages * chunks - 1):
            if not done & set(some):
                raise ScheduleError(
                    f"Stage {stage}: `{name(i)}` needs `{name(some[0])}` before it."
                )
        done.add(i)
    for k, chunk in itertools.product(range(micro_batches), range(chunks)):
        kinds = "".join(kind for kind in "FBIW" if (kind, k, chunk) in done)
        if kinds not in ("FB", "FIW"):
            this = name(("", k, chunk))
            raise ScheduleError(
                f"Stage {stage} does {' '.join(kinds) or 'nothing'} with micro-batch {this}; it "
                "must do F and B, or F, I and W."
            )


def check_schedule(schedule):
    """Return how many activations each stage holds at most, or raise ScheduleError, a sentence.

    Right is: every micro-batch passes every piece once in each direction, nothing comes before
    what it needs, and all messages arrive in order, as long as a link can hold one of them. The
    schedule may have messages; where it has none, they are put in.
    """
    if not schedule or not all(schedule):
        raise ScheduleError("There is a stage at least, and every stage has something to do.")
    for stage, program in enumerate(schedule):
        check_instructions(stage, program)
    stages, micro_batches, chunks = size(schedule)
    if stages == 1 and chunks > 1:
        raise ScheduleError("One stage with several chunks would send messages to itself.")
    full = with_messages(schedule)
    bare = all(program == computing(program) for program in schedule)
    for stage, program in enumerate(full if bare else schedule):
        check_program(stage, program, stages, micro_batches, chunks)
        there, wanted = set(program), set(full[stage])
        for i in [*full[stage], *program]:
            if i not in there or i not in wanted:
                what = "never does" if i in wanted else "has no use for"
                raise ScheduleError(f"Stage {stage} {what} `{name(i)}`.")
    simulate(full if bare else schedule, depth=1)
    return [held(program) for program in schedule]


def interleaved(stages, micro_batches, chunks):
    """Interleaved 1F1B: several chunks a stage; as many micro-batches as stages go round together.

    Raises ScheduleError unless micro_batches is a multiple of stages.
    """
    if micro_batches % stages:
        raise ScheduleError(f"{micro_batches} micro-batches do not make groups of {stages}.")
    groups = range(0, micro_batches, stages)
    order = [(g + k, c) for g in groups for c in range(chunks) for k in range(stages)]
    forwards = [("F", k, c) for k, c in order]
    backwards = [("B", k, chunks - 1 - c) for k, c in order]
    warm_ups = [(chunks - 1) * stages + 2 * (stages - stage - 1) for stage in range(stages)]
    return [alternating(forwards, backwards, warm_up) for warm_up in warm_ups]


def zero_bubble(stages, micro_batches):
    """ZB-H1: 1F1B with I and W in the place of B; stage s is s micro-batches late with its W."""
    schedule = []
    for stage, program in enumerate(one_f_one_b(stages, micro_batches)):
        late = [("W", k, 0) for k in range(micro_batches)]
        schedule.append([])
        for kind, k, _ in program:
            schedule[-1].append(("I" if kind == "B" else "F", k, 0))
            if kind == "B" and k >= stage:
                schedule[-1].append(late.pop(0))
        schedule[-1] += late
    return schedule


class SplitWorker(Worker):
    """A worker that can compute the gradient of the input now, and those of the weights later.

    A piece that is an nn.Sequential is cut between its layers: then nothing that lies between two
    layers is computed twice. One with a forward of its own, or without layers, stays whole.
    """

    def __init__(self, chunks, like, loss=None, group=None):
        super().__init__(chunks, like, loss, group)
        plain = nn.Sequential.forward  # a subclass may do more than one layer after the other
        self.parts = [[*c] if type(c).forward is plain and len(c) else [c] for c in chunks]
        self.does |= {"I": self.backward_input, "W": self.backward_weight}
        self.late = {}

    def backward_input(self, instruction):
        which = instruction[1:]
        gradient = self.box.pop(("receive gradient", *which), None)
        self.late[which] = []
        for part, x, y in reversed(self.kept.pop(which)):
            self.late[which].append((part, y, gradient))
            if x.requires_grad:
                (gradient,) = torch.autograd.grad(y, x, gradient, retain_graph=True)
        self.hand_back(gradient, *which)

    def backward_weight(self, instruction):
        for part, y, gradient in self.late.pop(instruction[1:]):
            weights = [p for p in part.parameters() if p.requires_grad]
            if weights and y.requires_grad:
                torch.autograd.backward(y, gradient, inputs=weights)


def formula(order, stages, micro_batches, chunks=1, forward=1, backward_input=1, backward_weight=1):
    """(idle seconds of a stage in a step, activations that stage 0 holds), by the formulas.

    order: "gpipe", "one_f_one_b", "interleaved" or "zero_bubble"; the last two with at least as
    many micro-batches as stages. Seconds: of a micro-batch in all chunks of a stage. Raises
    ValueError for another order.
    """
    ways, work = stages - 1, forward + backward_input + backward_weight
    urgent = max(forward, backward_input, forward + backward_input - backward_weight)
    known = {
        "gpipe": (ways * work, micro_batches),
        "one_f_one_b": (ways * work, min(stages, micro_batches)),
        "interleaved": (ways * work / chunks, min(chunks * stages + ways, chunks * micro_batches)),
        "zero_bubble": (ways * urgent, min(stages, micro_batches)),
    }
    if order not in known:
        raise ValueError(f"There is no formula for {order!r}, only for {', '.join(known)}.")
    return known[order]
