"""Wrong answers to the exercise on f and g: the solution, with one mistake each."""

import torch
import torch.distributed as dist

from wrong_answers import wrong


def _as_it_is(x):
    return x.view_as(x)


def _sum(x):
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return total


def _sum_as_it_lies(x):
    total = x.clone()
    dist.all_reduce(total)
    return total


def _mean(x):
    return _sum(x) / dist.get_world_size()


def _in_place(x):
    dist.all_reduce(x)
    return x


def _function(there, back):
    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return there(x)

        @staticmethod
        def backward(ctx, gradient):
            return back(gradient)

    return Function.apply


def _branches(f=(_as_it_is, _sum), g=(_sum, _as_it_is)):
    def summed_branches(branch, x):
        return _function(*g)(branch(_function(*f)(x)))

    return (summed_branches,)


def _wrong(*says):
    return wrong("summed_branches", says=says, several=True)


@_wrong("gradient of x", "rank's own branch alone", "what has f to do in backward")
def no_f():
    return _branches(f=(_as_it_is, _as_it_is))


@_wrong("['value']", "That is the rank's own branch")
def no_g():
    return _branches(g=(_as_it_is, _as_it_is))


@_wrong("goes into the branches as it is")
def f_and_g_the_other_way_round():
    return _branches(f=(_sum, _as_it_is), g=(_as_it_is, _sum))


@_wrong("goes into the branches as it is")
def f_sums_in_both_directions():
    return _branches(f=(_sum, _sum))


@_wrong("what has g to do in backward")
def g_sums_in_backward_too():
    return _branches(g=(_sum, _sum))


@_wrong("divided by the number of ranks")
def g_averages_in_backward():
    return _branches(g=(_sum, lambda gradient: gradient / dist.get_world_size()))


@_wrong("mean of the branches")
def means():
    return _branches(g=(_mean, _as_it_is))


@_wrong("x's gradient is the mean over the ranks")
def the_mean_of_the_gradients():
    return _branches(f=(_as_it_is, _mean))


@_wrong("What comes into a forward is not yours to change")
def sums_what_the_branch_returned():
    return _branches(g=(_in_place, _as_it_is))


@_wrong("branches that return x itself", "is the gradient of the residual as well")
def sums_the_gradient_in_place():
    return _branches(f=(_as_it_is, _in_place))


@_wrong("Nothing leads back to x")
def branch_of_a_detached_x():
    return _branches(f=(_as_it_is, lambda gradient: None))


@_wrong("rank 0's branch returns a transposed tensor", "['value']", "adds memory to memory")
def keeps_the_order_of_what_the_branch_returned():
    return _branches(g=(_sum_as_it_lies, _as_it_is))


@_wrong("rank 0's branch returns a transposed tensor", "gradient of x", "adds memory to memory")
def keeps_the_order_of_the_gradient():
    return _branches(f=(_as_it_is, _sum_as_it_lies))


@_wrong("a sum that autograd does not know of has no backward")
def sums_what_is_detached():
    def summed_branches(branch, x):
        f = _function(_as_it_is, _sum)
        return _sum(branch(f(x)).detach())

    return (summed_branches,)


@_wrong("clone")
def sums_the_value_itself():
    def summed_branches(branch, x):
        y = branch(_function(_as_it_is, _sum)(x))
        dist.all_reduce(y)
        return y

    return (summed_branches,)


@_wrong("returns nothing")
def returns_what_all_reduce_returns():
    return _branches(g=(lambda x: dist.all_reduce(x.clone()), _as_it_is))


@_wrong("stuck", "Every rank must take part in every sum")
def only_rank_0_sums_the_gradients():
    return _branches(f=(_as_it_is, lambda g: _sum(g) if dist.get_rank() == 0 else g))


@_wrong("All numbers are right", "two are enough")
def sums_twice_what_it_needs_once():
    def twice(gradient):
        _sum(gradient)
        return _sum(gradient)

    return _branches(f=(_as_it_is, twice))


@_wrong("as many values as `forward` has arguments")
def one_gradient_too_few():
    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, group):
            return _sum(x)

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    def summed_branches(branch, x):
        return Function.apply(branch(_function(_as_it_is, _sum)(x)), None)

    return (summed_branches,)


@_wrong("F.apply(x)")
def called_and_not_applied():
    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, gradient):
            return _sum(gradient)

    def summed_branches(branch, x):
        return _function(_sum, _as_it_is)(branch(Function(x)))

    return (summed_branches,)
