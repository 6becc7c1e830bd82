# Generated from book/17_pipeline.md by `make forms`: edit the manuscript, not this file.

"""Pipeline parallelism: filling the bubble: what chapter 17_pipeline teaches."""

import itertools
import time
from collections import defaultdict, deque

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import record_function

from ranklab.taught.training import now


def gpipe(stages, micro_batches):
    """For each stage a list of instructions: all forwards, all backwards."""
    ks = range(micro_batches)
    return [[(kind, k, 0) for kind in "FB" for k in ks] for _ in range(stages)]


class ScheduleError(ValueError):
    """Why a schedule cannot work."""


def size(schedule):
    """(stages, micro-batches, chunks of a stage) of a schedule."""
    _, micro_batches, chunks = zip(*itertools.chain(*schedule))
    return len(schedule), max(micro_batches) + 1, max(chunks) + 1


def computing(program):  # the messages have longer names
    return [i for i in program if len(i[0]) == 1]


def simulate(schedule, forward=1.0, backward_input=1.0, backward_weight=1.0, message=0):
    """For each stage a list of (computation, start, end). Seconds: of the work
    on one chunk, a number or one a stage, and of a message. Raises
    ScheduleError where no stage can go on."""
    stages, micro_batches, chunks = size(schedule)
    works = forward, backward_input, backward_weight
    each = [x if hasattr(x, "__len__") else [x] * stages for x in works]
    seconds = [{"F": f, "I": i, "W": w, "B": i + w} for f, i, w in zip(*each)]
    outside = ("F", 0), ("B", stages * chunks - 1)  # inputs, and losses
    there = {(*end, k): 0 for end in outside for k in range(micro_batches)}
    times, left = [[] for _ in schedule], [computing(p) for p in schedule]
    while any(left):
        before = sum(map(len, left))
        for stage, (program, done) in enumerate(zip(left, times)):
            while program:
                kind, k, chunk = program[0]
                piece, way = chunk * stages + stage, "BF"[kind == "F"]
                if (way, piece, k) not in there:
                    break  # it has to wait
                start = max(done[-1][2] if done else 0, there[way, piece, k])
                end = start + seconds[stage][kind]
                done.append((program.pop(0), start, end))
                if kind != "W":
                    to = piece + (1 if way == "F" else -1)
                    there[way, to, k] = end + message
        if before == sum(map(len, left)):
            raise ScheduleError("Deadlock: no stage can go on.")
    return times


def end_of(times):
    return max(end for of_stage in times for _, _, end in of_stage)


def idle_share(times):
    """The bubble: the share of the stages' time without computing."""
    parts = [p for row in times for p in row if len(p[0][0]) == 1]
    busy = sum(end - start for _, start, end in parts)
    whole = max(end for *_, end in parts) - min(start for _, start, _ in parts)
    return 1 - busy / (len(times) * whole)


def held(program):
    """The most activations, one a micro-batch and chunk, that a stage holds."""
    most = now = 0
    for kind, _, _ in program:
        now += {"F": 1, "B": -1, "W": -1}.get(kind, 0)
        most = max(most, now)
    return most


def alternating(forwards, backwards, warm_up):
    """Some forwards to warm up, then both in turn, then what is left."""
    pairs = zip(forwards[warm_up:], backwards)
    rest = backwards[len(forwards[warm_up:]) :]
    return [*forwards[:warm_up], *itertools.chain(*pairs), *rest]


def one_f_one_b(stages, micro_batches):
    """1F1B: to warm up, a forward for each stage behind."""
    ks = range(micro_batches)
    both = [[(kind, k, 0) for k in ks] for kind in "FB"]
    return [alternating(*both, some) for some in reversed(range(stages))]


def with_messages(schedule):
    """The schedule with a receive before whatever needs one, and a send after
    what makes one. Piece chunk * stages + stage of the model is a stage's."""
    stages, _, chunks = size(schedule)
    full = [[] for _ in schedule]
    for stage, program in enumerate(schedule):
        for kind, *which in computing(program):
            piece, what = which[1] * stages + stage, "gradient"
            ends = [piece == stages * chunks - 1, piece == 0]
            if kind == "F":
                what, ends = "activation", ends[::-1]
            if kind != "W" and not ends[0]:
                full[stage].append((f"receive {what}", *which))
            full[stage].append((kind, *which))
            if kind != "W" and not ends[1]:
                full[stage].append((f"send {what}", *which))
    return full


def neighbor(kind, stage, stages):
    """The other stage: activations go to the next one, gradients back."""
    step = 1 if kind in ("send activation", "receive gradient") else -1
    return (stage + step) % stages


def name(instruction):
    """Its name, "F0"; the chunk is named if it is not chunk 0: "B2.1"."""
    kind, k, chunk = instruction
    return f"{kind}{' ' * (len(kind) > 1)}{k}" + f".{chunk}" * (chunk > 0)


def parse(text):
    """Instructions by name: parse("F0 B2.1") is [("F", 0, 0), ("B", 2, 1)]."""
    words = [(word[0], *word[1:].split(".")) for word in text.split()]
    return [(kind, int(k), int(*chunk or "0")) for kind, k, *chunk in words]


class Messenger:
    """A rank as a stage of a pipeline: its messages, by instructions."""

    ahead = 8  # so many receives are posted at a time

    def __init__(self, like, group=None):
        self.like, self.group = like, group
        self.stage = dist.get_rank(group)
        self.stages = dist.get_world_size(group)
        self.does = {
            f"{way} {what}": getattr(self, way)
            for way in ("send", "receive")
            for what in ("activation", "gradient")
        }

    def begin(self, program):
        """Before a step: nothing is there, and the first messages may come."""
        if self.ahead < 1:
            raise ValueError("`ahead` must be at least 1.")
        self.box, self.under_way, self.posted = {}, {}, {}
        self.to_post = deque(i for i in program if i[0].startswith("receive"))
        for _ in range(self.ahead):
            self.post()

    def link(self, instruction):  # the rank at its other end, and its tag
        other = neighbor(instruction[0], self.stage, self.stages)
        return other, int("gradient" in instruction[0])

    def send(self, instruction):
        to, tag = self.link(instruction)
        tensor = self.box.pop(instruction).contiguous()
        demand_like(tensor, self.like, instruction)
        self.end_send(to, tag)  # the one before it
        work = dist.isend(tensor, group=self.group, group_dst=to, tag=tag)
        self.under_way[to, tag] = work

    def end_send(self, *link):  # wait for what is under way on it
        if link in self.under_way:
            self.under_way.pop(link).wait()

    def post(self):
        """Make room for the next receive's message, and let it come."""
        if self.to_post:
            i, tensor = self.to_post.popleft(), torch.empty_like(self.like)
            src, tag = self.link(i)
            work = dist.irecv(tensor, group=self.group, group_src=src, tag=tag)
            self.posted[i] = tensor, work

    def receive(self, i):
        tensor, work = self.posted.pop(i)
        work.wait()
        self.box[i] = tensor.requires_grad_("activation" in i[0])
        self.post()


class Stage(Messenger):
    """chunks: its pieces of the model; chunk c of stage s is piece c * stages
    + s. like: of such a shape, type and device is what they send. loss: of the
    last piece's output and targets. parts: each piece as a list."""

    def __init__(self, chunks, like, loss=None, group=None):
        super().__init__(like, group)
        self.parts, self.loss = [[chunk] for chunk in chunks], loss
        methods = "forward", "backward", "backward_input", "backward_weight"
        able = [pair for pair in zip("FBIW", methods) if hasattr(self, pair[1])]
        self.does |= {kind: getattr(self, method) for kind, method in able}

    def begin(self, program, inputs, targets):
        """Before a step. Each stage uses what it needs of the micro-batches."""
        super().begin(program)
        self.inputs, self.targets = inputs, targets
        self.kept, self.late, self.losses, self.log = {}, {}, [], []

    def ends(self, chunk):
        """Is this chunk the model's first piece? Its last one?"""
        piece = chunk * self.stages + self.stage
        return piece == 0, piece == self.stages * len(self.parts) - 1

    def send_back(self, gradient, which):
        """The gradient of a piece's input is for the stage before."""
        if not self.ends(which[1])[0]:
            self.box["send gradient", *which] = gradient


def demand_like(tensor, like, instruction):
    """Raise ValueError for a tensor that the other side has no room for."""
    found, wanted = ((tuple(t.shape), t.dtype) for t in (tensor, like))
    if found != wanted:
        raise ValueError(
            f"`{name(instruction)}` has a tensor of shape {found[0]} and "
            f"{found[1]}, and `like`, what a receive makes room for, is of "
            f"shape {wanted[0]} and {wanted[1]}."
        )


def demand_sound(program, worker, inputs, targets):
    """Raise ValueError for what a worker cannot do, or for other micro-batches
    than the program's."""
    for i in program:
        if i[0] not in worker.does:
            kind = type(worker).__name__
            raise ValueError(f"A {kind} cannot do `{name(i)}`.")
    m = 1 + max(k for _, k, _ in program)
    ends = worker.ends(0)[0], worker.ends(len(worker.parts) - 1)[1]
    given = ("inputs", inputs), ("targets", targets)
    for (what, parts), needed in zip(given, ends):
        shapes = sorted({tuple(part.shape) for part in parts})
        if needed and (len(parts) != m or len(shapes) > 1):
            raise ValueError(
                f"The program has {m} micro-batch{'es' * (m > 1)}, and needs "
                f"as many {what}, all of one shape; there are {len(parts)}, "
                f"of shapes {shapes}."
            )


class ForwardWorker(Stage):
    """A stage that can do forwards, and keeps what backward will need."""

    def forward(self, instruction):
        which, (first, last) = instruction[1:], self.ends(instruction[2])
        came = ("receive activation", *which)
        y = self.inputs[which[0]] if first else self.box.pop(came)
        self.kept[which] = []
        for part in self.parts[which[1]]:
            x = y.detach().requires_grad_(y.requires_grad)
            y = part(x)
            self.kept[which].append((part, x, y))
        if last:
            loss = self.loss(y, self.targets[which[0]])
            self.losses.append(loss.item())
            self.kept[which][-1] = part, x, loss / len(self.targets)
        else:
            self.box["send activation", *which] = y.detach()


class Worker(ForwardWorker):
    """A rank as a stage of a pipeline: it carries out its instructions."""

    def backward(self, instruction):
        which = instruction[1:]
        gradient = self.box.pop(("receive gradient", *which), None)
        for _, x, y in reversed(self.kept.pop(which)):
            if y.requires_grad:
                torch.autograd.backward(y, gradient)  # None: y is the loss
            gradient = x.grad
        self.send_back(gradient, which)


def run(program, worker, inputs, targets):
    """Forward and backward of a step. inputs, targets: micro-batches of one
    size, needed for the first and for the last piece. Returns the losses, in
    the program's order, of the last piece. After an error the group is lost."""
    demand_sound(program, worker, inputs, targets)
    worker.begin(program, inputs, targets)
    zero = now()
    for i in program:
        start = now() - zero
        with record_function(name(i)):  # its name in a profile
            worker.does[i[0]](i)
        worker.log.append((i, start, now() - zero))
    for link in list(worker.under_way):
        worker.end_send(*link)
    return worker.losses


def check_program(stage, program, wanted, micro_batches, chunks):
    """Does a stage do all that it must, and after what it needs of `wanted`?"""
    came = ["F", "receive gradient"]
    needs = {"F": ["receive activation"], "B": came, "I": came, "W": ["I"]}
    needs |= {"send activation": ["F"], "send gradient": ["B", "I"]}
    done = set()
    for i in program:
        for before in [(kind, *i[1:]) for kind in needs.get(i[0], [])]:
            always = len(i[0]) == len(before[0]) == 1
            if before not in done and (always or before in wanted):
                wrong = f"Stage {stage}: `{name(i)}` needs"
                raise ScheduleError(f"{wrong} `{name(before)}` before it.")
        done.add(i)
    for k, chunk in itertools.product(range(micro_batches), range(chunks)):
        kinds = "".join(kind for kind in "FBIW" if (kind, k, chunk) in done)
        if kinds not in ("FB", "FIW"):
            this, does = name(("", k, chunk)), " ".join(kinds) or "nothing"
            wrong = f"Stage {stage} does {does} with micro-batch {this}"
            raise ScheduleError(f"{wrong}; it must do F and B, or F, I and W.")


def play(schedule, depth=1):
    """Let every stage go on until it has to wait; links hold `depth` messages.
    Raises ScheduleError if one is not that expected, or stages stay waiting."""
    stages, links, moved = len(schedule), defaultdict(deque), True
    left = [deque(program) for program in schedule]
    while moved:
        moved = False
        for stage, program in enumerate(left):
            while program and carry(links, program[0], stage, stages, depth):
                program.popleft()
                moved = True
    waits = []
    for stage, program in enumerate(left):
        if program:
            kind, this = program[0][0], name(program[0])
            other = neighbor(kind, stage, stages)
            waits.append(f"stage {stage} waits for stage {other} in `{this}`")
    if waits:
        raise ScheduleError(f"Deadlock: {', '.join(waits)}.")


def carry(links, instruction, stage, stages, depth):
    """Put a message on its link, or take it; False if that has to wait."""
    kind, k, chunk = instruction
    if len(kind) == 1:
        return True
    (verb, what), other = kind.split(), neighbor(kind, stage, stages)
    if verb == "send":
        link = links[what, stage, other]
        piece = chunk * stages + stage + (1 if what == "activation" else -1)
        if len(link) != depth:  # there is room
            link.append((f"receive {what}", k, piece // stages))
            return True
        return False
    link = links[what, other, stage]
    if link and link[0] != instruction:
        raise ScheduleError(
            f"Stage {stage} wants to `{name(instruction)}`, and the next "
            f"message on that link is for `{name(link[0])}`."
        )
    return bool(link and link.popleft())


def check_schedule(schedule):
    """Return how many activations each stage holds at most, or raise
    ScheduleError, a sentence. Messages are put in where there are none."""
    if not schedule or not all(schedule):
        raise ScheduleError("Every stage has something to do.")
    ways = itertools.product(("send", "receive"), ("activation", "gradient"))
    kinds = {*"FBIW", *map(" ".join, ways)}
    for s, program in enumerate(schedule):
        for k, i in enumerate(program):
            if i[0] not in kinds or min(i[1:]) < 0:
                raise ScheduleError(f"Stage {s} has no use for `{name(i)}`.")
            if i in program[:k]:
                raise ScheduleError(f"Stage {s}: `{name(i)}` comes twice.")
    full, (stages, m, chunks) = with_messages(schedule), size(schedule)
    if stages == 1 and chunks > 1:
        raise ScheduleError("A stage cannot send messages to itself.")
    bare = all(program == computing(program) for program in schedule)
    schedule = full if bare else schedule
    for stage, program in enumerate(schedule):
        check_program(stage, program, set(full[stage]), m, chunks)
        for i in [*full[stage], *program]:
            if i not in program or i not in full[stage]:
                what = "never does" if i in full[stage] else "has no use for"
                raise ScheduleError(f"Stage {stage} {what} `{name(i)}`.")
    play(schedule, depth=1)
    return [held(program) for program in schedule]


def interleaved(stages, micro_batches, chunks, each=2):
    """Interleaved 1F1B; each: more forwards first, for each stage behind."""
    if micro_batches % stages:
        wrong = f"{micro_batches} micro-batches do not make"
        raise ScheduleError(f"{wrong} groups of {stages}.")
    groups, inside = range(0, micro_batches, stages), range(stages)
    order = [(g + k, c) for g in groups for c in range(chunks) for k in inside]
    forwards = [("F", k, c) for k, c in order]
    backwards = [("B", k, chunks - 1 - c) for k, c in order]
    warm_ups = [(chunks - 1) * stages + each * k for k in reversed(inside)]
    return [alternating(forwards, backwards, some) for some in warm_ups]


def zero_bubble(stages, micro_batches, memory=1):
    """ZB-H1, or with memory=2 ZB-H2: 1F1B with I and W in the place of B.
    Stage s is memory * s micro-batches late with its W."""
    schedule, m = [], micro_batches
    for stage in range(stages):
        late = memory * stage
        warm_up = min(m, memory * (stages - stage) - memory + 1)
        program = [("F", k, 0) for k in range(warm_up)]
        for k in range(m):
            program.append(("I", k, 0))
            if k >= late:
                program.append(("W", k - late, 0))
            if k + warm_up < m:
                program.append(("F", k + warm_up, 0))
        program += [("W", k, 0) for k in range(max(0, m - late), m)]
        schedule.append(program)
    return schedule


def idle_within(times):
    """Of each stage, the seconds that it is idle within its own span."""
    rows = [[p for p in row if len(p[0][0]) == 1] for row in times]
    busy = [sum(end - start for _, start, end in row) for row in rows]
    return [row[-1][2] - row[0][1] - b for row, b in zip(rows, busy)]


class InputWorker(Worker):
    """A worker that can compute the gradient of an input alone."""

    def backward_input(self, instruction):
        which = instruction[1:]
        gradient = self.box.pop(("receive gradient", *which), None)
        self.late[which] = []
        for part, x, y in reversed(self.kept.pop(which)):
            self.late[which].append((part, y, gradient))
            if x.requires_grad:
                keep = {"retain_graph": True}  # for W
                (gradient,) = torch.autograd.grad(y, x, gradient, **keep)
        self.send_back(gradient, which)


class SplitWorker(InputWorker):
    """Does I now and W later. A plain nn.Sequential is cut between layers."""

    def __init__(self, *args, **how):
        super().__init__(*args, **how)
        plain = nn.Sequential.forward  # a subclass's may do more
        for k, [piece] in enumerate(self.parts):
            if type(piece).forward is plain and len(piece):
                self.parts[k] = [*piece]

    def backward_weight(self, instruction):
        for part, y, gradient in self.late.pop(instruction[1:]):
            weights = [p for p in part.parameters() if p.requires_grad]
            if weights and y.requires_grad:
                torch.autograd.backward(y, gradient, inputs=weights)


class Napper(Stage):
    """A stage that sleeps in the place of computing. Messages are real."""

    def __init__(self, unit, chunks=1, group=None):
        super().__init__([None] * chunks, torch.zeros(1), None, group)
        self.unit = unit / chunks
        self.does |= dict.fromkeys("FBIW", self.nap)

    def nap(self, instruction):
        kind, *which = instruction
        time.sleep(self.unit * (2 if kind == "B" else 1))
        what = "activation" if kind == "F" else "gradient"
        if kind != "W":  # at the model's ends nobody takes it
            self.box.pop((f"receive {what}", *which), None)
            self.box[f"send {what}", *which] = torch.zeros(1)
