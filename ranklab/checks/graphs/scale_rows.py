"""An operation with a rule of its own: each row times a number."""

import torch

from ranklab.checks.graphs import _tensors as tensors
from ranklab.exercises import Case, Exercise, Mistake
from ranklab.taught.graphs import Tensor, backward, mul

RULE = "lambda grad: (grad * column, (grad * a.data).sum(axis=1))"  # in the solution


def case(m, n, times=1):
    def make(rank, world_size):
        return (*tensors.random((m, n), (m,), (m, n), seed=10 * m + n), times)

    twice = ", applied twice" if times > 1 else ""
    return Case(f"{m} row{'s' if m > 1 else ''} of {n}{twice}", make, ranks=1)


def drive(scale_rows, a, s, weights, times):
    """Use the operation once or twice; return its value and, after backward, both gradients."""
    out = leaf = Tensor(a.numpy())
    scales = Tensor(s.numpy())
    came = dict.fromkeys(("what came", "value", "gradient of a", "gradient of s"))
    for _ in range(times):
        out = scale_rows(out, scales)
        came["what came"] = tensors.what(out)
        if came["what came"] != tensors.TENSOR:
            return came
    came["value"] = torch.as_tensor(out.data.copy())
    backward(mul(out, Tensor(weights.numpy())))
    return came | {
        "gradient of a": tensors.gradient(leaf),
        "gradient of s": tensors.gradient(scales),
    }


def twin(inputs):
    (a, s, weights, times) = inputs[0]
    out, s = a.requires_grad_(), s.requires_grad_()
    for _ in range(times):
        out = out * s[:, None]
    (out * weights).sum().backward()
    gradients = {"gradient of a": a.grad, "gradient of s": s.grad}
    return [{"what came": tensors.TENSOR, "value": out.detach(), **gradients}]


exercise = Exercise(
    cases=[case(2, 3), case(3, 3), case(1, 4), case(4, 1), case(5, 2, times=2), case(1, 1)],
    twin=twin,
    drive=drive,
    limit=3.0,
    hint="Compare with `mul` and `add` of the chapter: what does each rule give for each source?",
    also_right=[
        {
            RULE: "lambda grad: iter([np.diag(s.data) @ grad, (grad @ a.data.T).diagonal()])",
            "a.data * column": "np.diag(s.data) @ a.data",
        },
        {
            "return Tensor(": "out = Tensor(",
            f"        {RULE},\n    )": "    )\n"
            "    out.rule = lambda grad: [grad * column, np.einsum('ij,ij->i', grad, a.data)]\n"
            "    return out",
        },
    ],
    mistakes=[
        Mistake(
            "Does every loop come to its end?",
            {"    return": "    while True:\n        pass\n    return"},
            happened="slow",
        ),
        Mistake(
            "Make a new array, with *. In place, with *=, the data of `a` is gone for its rule.",
            {"        a.data * column": "        a.data.__imul__(column)"},
            happened="changed",
        ),
        *tensors.no_rule(
            {f"        {RULE},\n": ""},
            {RULE: "lambda grad: None"},
            {RULE: "lambda grad: (grad * column,)"},
        ),
        Mistake(
            "NumPy lines up shapes at their ends, so (2,) does not fit (2, 3). One number for each "
            "row has to be a column, (2, 1): in the value, and in the rule.",
            {"[:, np.newaxis]": ""},
            {"(grad * column": "(grad * s.data"},
            happened="error",
            test=lambda seen: "broadcast" in seen.error,
        ),
        *tensors.no_tensor({"return Tensor": "Tensor"}, {"return Tensor(": "return ("}),
        Mistake(
            "The value comes first: row i of a, times s[i]. For NumPy that is s as a column.",
            {"        a.data * column": "        a.data + column"},
            test=lambda seen: tensors.differs(seen, "value"),
        ),
        Mistake(
            "No gradient came there: are both `a` and `s` among the sources?",
            {"(a, s),": "(a,),", RULE: "lambda grad: (grad * column,)"},
            test=lambda seen: None in seen.results[0].values(),
        ),
        Mistake(
            "The rule returns the gradients in the order of the sources, each in the shape of its "
            "source.",
            {RULE: "lambda grad: ((grad * a.data).sum(axis=1), grad * column)"},
        ),
        Mistake(
            "A rule returns a tuple with one gradient for each source. An array instead of it is "
            "taken apart into its rows.",
            {RULE: "lambda grad: grad * column"},
        ),
        Mistake(
            "The gradient of a: each of its entries was multiplied by the scale of its row, so the "
            "incoming gradient is, too.",
            {"(grad * column": "(grad"},
            test=lambda seen: tensors.differs(seen, "gradient of a"),
        ),
        Mistake(
            "The sums over the rows are a column here; `s` has one dimension.",
            {"axis=1": "axis=1, keepdims=True"},
        ),
        Mistake(
            "One scale was used by a whole row, so its gradient is a sum over that row.",
            {".sum(axis=1)": ""},
            test=lambda seen: seen.found == "shape",
        ),
        Mistake(
            "The gradient of s[i] is a sum over row i. What was s[i] multiplied by there, and what "
            "gradient came in?",
            {"grad * a.data": "grad"},
            {"grad * a.data": "a.data"},
            test=lambda seen: tensors.differs(seen, "gradient of s"),
        ),
    ],
)
