# Generated from book/18_tensor.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: 1d02fb98beb7).
#
# === Summed branches ==================================================================
#
# Fill in, about 10 minutes. Write f and g once more, from memory.
# `summed_branches(branch, x)` returns the sum over all ranks of `branch(x)`, the same
# on every rank. `branch` is another function on every rank, made of this rank's own
# weights; x is the same on all. When a loss that all ranks compute alike goes backward,
# x.grad must be the gradient of the whole on every rank, and the weights of each branch
# must have their own, once. What a branch returns may be transposed on one rank, and
# not on another. Change nothing in place, neither x nor what the branch gives nor the
# gradient that comes back, and send one all-reduce in each direction, not more. With
# `branch = lambda x: (rank + 1) * x` on 4 ranks, x = [1., 2.] gives [10., 20.].
#
#     python scripts/exercises/18_summed_branches.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

import torch
import torch.distributed as dist


def summed_branches(branch, x):
    """Return the sum over the ranks of branch(x), on every rank."""

    class F(torch.autograd.Function):
        """Where x goes into the branches."""

        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, gradient):
            # TODO: what is the gradient of x?
            # YOUR CODE HERE
            raise NotImplementedError()

    class G(torch.autograd.Function):
        """Where what the branches have computed comes together."""

        @staticmethod
        def forward(ctx, y):
            # TODO: the sum
            # YOUR CODE HERE
            raise NotImplementedError()

        @staticmethod
        def backward(ctx, gradient):
            # TODO: what is the gradient of this rank's y?
            # YOUR CODE HERE
            raise NotImplementedError()

    return G.apply(branch(F.apply(x)))


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("summed_branches", summed_branches) else 1)
