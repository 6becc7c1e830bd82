"""Wrong answers to the exercise on an MLP with a gate: the solution, with one mistake each."""

import torch
import torch.distributed as dist
from torch import nn

from ranklab.taught.tensor import copied, summed
from wrong_answers import wrong


def _hidden(x, gate, up):
    return nn.functional.silu(x @ gate.T) * (x @ up.T)


@wrong("gated_mlp", says=["gradient of x", "into those of all ranks: through what?"])
def no_f(x, gate, up, down, bias):
    return summed(_hidden(x, gate, up) @ down.T) + bias


@wrong("gated_mlp", says=["Who sums over the ranks?"])
def no_g(x, gate, up, down, bias):
    return _hidden(copied(x), gate, up) @ down.T + bias


@wrong("gated_mlp", says=["as many times as there are ranks. When is it to be added?"])
def bias_before_the_sum(x, gate, up, down, bias):
    return summed(_hidden(copied(x), gate, up) @ down.T + bias)


@wrong("gated_mlp", says=["The bias is not in it"])
def forgets_the_bias(x, gate, up, down, bias):
    return summed(_hidden(copied(x), gate, up) @ down.T)


@wrong("gated_mlp", says=["gradient of bias", "it needs no f"])
def f_of_the_bias(x, gate, up, down, bias):
    return summed(_hidden(copied(x), gate, up) @ down.T) + copied(bias)


@wrong("gated_mlp", says=["All numbers are right", "3 collectives", "x goes through f once"])
def f_twice(x, gate, up, down, bias):
    hidden = nn.functional.silu(copied(x) @ gate.T) * (copied(x) @ up.T)
    return summed(hidden @ down.T) + bias


@wrong("gated_mlp", says=["is f before both?"])
def f_only_before_the_gate(x, gate, up, down, bias):
    hidden = nn.functional.silu(copied(x) @ gate.T) * (x @ up.T)
    return summed(hidden @ down.T) + bias


@wrong("gated_mlp", says=["x's gradient is summed twice"])
def f_of_f(x, gate, up, down, bias):
    return summed(_hidden(copied(copied(x)), gate, up) @ down.T) + bias


@wrong("gated_mlp", says=["The other one goes through silu"])
def the_other_gate(x, gate, up, down, bias):
    return summed(_hidden(copied(x), up, gate) @ down.T) + bias


@wrong("gated_mlp", says=["The gate's function is silu"])
def gelu(x, gate, up, down, bias):
    x = copied(x)
    return summed((nn.functional.gelu(x @ gate.T) * (x @ up.T)) @ down.T) + bias


@wrong("gated_mlp", says=["nothing leads back from it"])
def a_sum_that_autograd_does_not_know(x, gate, up, down, bias):
    y = (_hidden(copied(x), gate, up) @ down.T).detach()
    dist.all_reduce(y)
    return y + bias


@wrong("gated_mlp", says=["g hands the gradient on as it is"])
def a_sum_in_both_directions(x, gate, up, down, bias):
    y = _hidden(copied(x), gate, up) @ down.T
    return copied(summed(y)) + bias


@wrong("gated_mlp", says=["(outputs, inputs)"])
def weights_the_other_way(x, gate, up, down, bias):
    x = copied(x)
    return summed((nn.functional.silu(x @ gate) * (x @ up)) @ down) + bias


@wrong("gated_mlp", says=["All numbers are right", "need not leave it"])
def gathers_the_hidden_features(x, gate, up, down, bias):
    hidden, n = _hidden(copied(x), gate, up), dist.get_world_size()
    parts = [torch.empty_like(hidden) for _ in range(n)]
    dist.all_gather(parts, hidden.detach().contiguous())
    downs = [torch.empty_like(down.T.contiguous()) for _ in range(n)]
    dist.all_gather(downs, down.detach().T.contiguous())
    own = summed(hidden @ down.T)
    whole = torch.cat(parts, -1) @ torch.cat(downs)
    return own + (whole - own).detach() + bias


@wrong("gated_mlp", says=["a rank without hidden features", "and every rank takes part"])
def a_rank_without_features_goes_home(x, gate, up, down, bias):
    if len(gate) == 0:
        return bias.expand_as(x)
    return summed(_hidden(copied(x), gate, up) @ down.T) + bias
