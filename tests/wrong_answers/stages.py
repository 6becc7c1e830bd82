"""Wrong answers to the exercises on a shift around a ring, and on a chain of strangers."""

import torch
import torch.distributed as dist
from torch import nn

from wrong_answers import wrong

# shift -----------------------------------------------------------------------------------------


def _pass_on(x, step):
    """x to the rank `step` further on; from as far back."""
    rank, n = dist.get_rank(), dist.get_world_size()
    if n == 1:
        return x.clone()
    came = torch.empty_like(x, memory_format=torch.contiguous_format)
    work = dist.isend(x.contiguous(), (rank + step) % n)
    dist.recv(came, (rank - step) % n)
    work.wait()
    return came


@wrong("shift", says=["the same way as x did"])
class SameWayBack(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return _pass_on(x, 1)

    @staticmethod
    def backward(ctx, gradient):
        return _pass_on(gradient, 1)


@wrong("shift", says=["keeps the gradient of what it *received*"])
class KeepsTheGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return _pass_on(x, 1)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.clone()


@wrong("shift", says=["the wrong way around"])
class OtherWayAround(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return _pass_on(x, -1)

    @staticmethod
    def backward(ctx, gradient):
        return _pass_on(gradient, 1)


@wrong("shift", says=["stuck", "If every rank begins with `send`"])
class AllSendFirst(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        rank, n = dist.get_rank(), dist.get_world_size()
        came = torch.empty_like(x)
        dist.send(x, (rank + 1) % n)
        dist.recv(came, (rank - 1) % n)
        return came

    @staticmethod
    def backward(ctx, gradient):
        return _pass_on(gradient, -1)


@wrong("shift", says=["alone", "its own neighbor"])
class SendsToItself(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        rank, n = dist.get_rank(), dist.get_world_size()
        came = torch.empty_like(x, memory_format=torch.contiguous_format)
        work = dist.isend(x.contiguous(), (rank + 1) % n)
        dist.recv(came, (rank - 1) % n)
        work.wait()
        return came

    @staticmethod
    def backward(ctx, gradient):
        return _pass_on(gradient, -1)


@wrong("shift", says=["plain sum", "without gaps"])
class TrustsTheGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return _pass_on(x, 1)

    @staticmethod
    def backward(ctx, gradient):
        rank, n = dist.get_rank(), dist.get_world_size()
        if n == 1:
            return gradient
        came = torch.empty_like(gradient)
        work = dist.isend(gradient, (rank - 1) % n)
        dist.recv(came, (rank + 1) % n)
        work.wait()
        return came


@wrong("shift", says=["no gradient at all"])
class ForgetsToReturn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return _pass_on(x, 1)

    @staticmethod
    def backward(ctx, gradient):
        _pass_on(gradient, -1)


@wrong("shift", says=["after the last rank"])
class NoRing(torch.autograd.Function):
    """A row: rank 0 gets zeros."""

    @staticmethod
    def forward(ctx, x):
        came = _pass_on(x, 1)
        return came if dist.get_rank() else torch.zeros_like(x)

    @staticmethod
    def backward(ctx, gradient):
        return _pass_on(gradient, -1)


# train_chain -----------------------------------------------------------------------------------


def _train(
    stage,
    batches,
    rate,
    *,
    shape_of=None,
    zero=True,
    back=True,
    tell=True,
    step=True,
    dense=True,
    ask=True,
    box=lambda y: torch.empty(y.shape, dtype=torch.float64),
):
    """The training, with parts that can be left out."""
    rank, n = dist.get_rank(), dist.get_world_size()
    losses, known = [], None
    for x, labels in batches:
        if rank > 0:
            if known is None or shape_of is None:
                said = [None]
                dist.recv_object_list(said, src=rank - 1)
                known = said[0]
            x = torch.empty(known, dtype=torch.float64)
            dist.recv(x, rank - 1)
            x.requires_grad_(ask)
        y = stage(x)
        if zero:
            stage.zero_grad()
        loss = torch.zeros((), dtype=torch.float64)
        if rank < n - 1:
            if shape_of is None or not losses:
                dist.send_object_list([tuple(y.shape)], dst=rank + 1)
            dist.send(y.detach().contiguous() if dense else y.detach(), rank + 1)
            if back:
                gradient = box(y)
                dist.recv(gradient, rank + 1)
                if y.requires_grad:
                    y.backward(gradient)
        else:
            loss = nn.functional.cross_entropy(y, labels)
            loss.backward()
            loss = loss.detach()
        if rank > 0 and back:
            dist.send(x.grad.contiguous() if dense else x.grad, rank - 1)
        with torch.no_grad():
            for p in stage.parameters() if step else []:
                if p.grad is not None:
                    p -= rate * p.grad
        if tell:
            dist.broadcast(loss, src=n - 1)
        losses.append(loss.item())
    return losses


@wrong("train_chain", says=["the weights that it began with"])
def sends_nothing_back(stage, batches, learning_rate):
    return _train(stage, batches, learning_rate, back=False)


@wrong("train_chain", says=["are added up", "set them back"])
def never_sets_gradients_back(stage, batches, learning_rate):
    return _train(stage, batches, learning_rate, zero=False)


@wrong("train_chain", says=["The others are to return them"])
def only_the_last_knows(stage, batches, learning_rate):
    return _train(stage, batches, learning_rate, tell=False)


@wrong("train_chain", says=["No weight has changed"])
def makes_no_step(stage, batches, learning_rate):
    return _train(stage, batches, learning_rate, step=False)


@wrong("train_chain", says=["transposes", "without gaps"])
def sends_what_has_gaps(stage, batches, learning_rate):
    return _train(stage, batches, learning_rate, dense=False)


@wrong("train_chain", says=["'contiguous'", "`x.grad`", "A stage that forgets"])
def asks_for_no_gradient(stage, batches, learning_rate):
    return _train(stage, batches, learning_rate, ask=False)


@wrong("train_chain", says=["transposes", "the box", "the gaps of its model"])
def receives_into_gaps(stage, batches, learning_rate):
    return _train(stage, batches, learning_rate, box=torch.empty_like)


@wrong("train_chain", says=["batches of 7, 2 and 4"])
def asks_for_the_shape_once(stage, batches, learning_rate):
    return _train(stage, batches, learning_rate, shape_of="the first")


@wrong("train_chain", says=["nothing to differentiate"])
def always_goes_backward(stage, batches, learning_rate):
    rank, n = dist.get_rank(), dist.get_world_size()
    losses = []
    for x, labels in batches:
        if rank > 0:
            box = [None]
            dist.recv_object_list(box, src=rank - 1)
            x = torch.empty(box[0], dtype=torch.float64)
            dist.recv(x, rank - 1)
            x.requires_grad_()
        y, loss = stage(x), torch.zeros((), dtype=torch.float64)
        stage.zero_grad()
        if rank < n - 1:
            dist.send_object_list([tuple(y.shape)], dst=rank + 1)
            dist.send(y.detach().contiguous(), rank + 1)
            gradient = torch.empty(y.shape, dtype=torch.float64)
            dist.recv(gradient, rank + 1)
            y.backward(gradient)
        else:
            loss = nn.functional.cross_entropy(y, labels)
            loss.backward()
            loss = loss.detach()
        if rank > 0:
            dist.send(x.grad.contiguous(), rank - 1)
        with torch.no_grad():
            for p in stage.parameters():
                p -= learning_rate * p.grad
        dist.broadcast(loss, src=n - 1)
        losses.append(loss.item())
    return losses


@wrong("train_chain", says=["stuck", "is a gradient sent back for each activation"])
def no_gradient_for_what_has_no_parameters(stage, batches, learning_rate):
    """A stage without parameters sends nothing back."""
    rank, n = dist.get_rank(), dist.get_world_size()
    trained = list(stage.parameters())
    losses = []
    for x, labels in batches:
        if rank > 0:
            box = [None]
            dist.recv_object_list(box, src=rank - 1)
            x = torch.empty(box[0], dtype=torch.float64)
            dist.recv(x, rank - 1)
            x.requires_grad_()
        y, loss = stage(x), torch.zeros((), dtype=torch.float64)
        stage.zero_grad()
        if rank < n - 1:
            dist.send_object_list([tuple(y.shape)], dst=rank + 1)
            dist.send(y.detach().contiguous(), rank + 1)
            gradient = torch.empty(y.shape, dtype=torch.float64)
            dist.recv(gradient, rank + 1)
            if y.requires_grad:
                y.backward(gradient)
        else:
            loss = nn.functional.cross_entropy(y, labels)
            loss.backward()
            loss = loss.detach()
        if rank > 0 and trained:
            dist.send(x.grad.contiguous(), rank - 1)
        with torch.no_grad():
            for p in trained:
                p -= learning_rate * p.grad
        dist.broadcast(loss, src=n - 1)
        losses.append(loss.item())
    return losses
