"""A whole training program, part by part: each case uses one of the answers."""

import torch

from ranklab.checks.training._models import case, samples
from ranklab.checks.training._program import ORDER, drive, twin
from ranklab.exercises import Exercise, Mistake


def training(niters, every):
    X, y = samples(40, seed=3)
    batches = [torch.arange(7 * step, 7 * step + 7) % 30 for step in range(niters)]
    return (X[:30], y[:30]), (X[30:], y[30:]), batches, 0.4, every


X, y = samples(8)
LAYERS = "n_layers counts the linear layers, the first and the last included."
BETWEEN = "Each layer in turn, and torch.tanh between them."
PAIRS = "Return (train X, train y), (test X, test y): two pairs of tensors."
RATE = "At step niters the rate would be 0.3 · first; half-way, 0.65 · first."
ONCE = "Forward, loss, backward, optimizer.step(), each once."
ZERO_GRAD = (
    "The first step is right. backward() adds to the gradients that are there: the optimizer's "
    "zero_grad() removes them."
)
MEANS = (
    "A mean of means counts the one sample of the last batch as much as five others. Add up sums, "
    "and divide by the number of samples."
)
STEPS = (
    "Is it each time both losses, then the rate of rate_at(step, len(batches), learning_rate), "
    "then a step on the chosen samples of train_set alone? An entry and a line are due where "
    "step % every == 0."
)
# In the solution
LAYER = """layer = nn.Linear(n_in, n_out, bias=False)
            nn.init.kaiming_uniform_(layer.weight)
            self.layers.append(layer)
"""
LEARN = """nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
"""
SET = """rate = rate_at(step, len(batches), learning_rate)
        optimizer.param_groups[0]["lr"] = rate
"""
EVALUATED = "    total = 0.0\n    with torch.no_grad():"
MEASURED = """losses = [evaluate(model, *train_set), evaluate(model, *test_set)]
            history.append((step, *losses))"""
AT_THE_END = MEASURED.replace(" " * 12, " " * 4)
PRINTED = "print(line(*history[-1], time.perf_counter() - start))"

exercise = Exercise(
    cases=[
        case("MLP(4, 1024, 256, 32): its weights", "shapes", 4, 1024, 256, 32, hint=LAYERS),
        case("MLP(1, 30, 20, 10): its weights", "shapes", 1, 30, 20, 10, hint=LAYERS),
        case("MLP(3, 50, 20, 7): its weights", "shapes", 3, 50, 20, 7, hint=LAYERS),
        case("an MLP of 4 layers with known weights", "forward", X, [5, 4, 4, 4, 3], hint=BETWEEN),
        case("an MLP of 1 layer with known weights", "forward", X, [5, 3], hint=BETWEEN),
        case("split of 200 samples", "split", 200, hint=PAIRS),
        case("split of 57 samples", "split", 57, hint=PAIRS),
        case("rate_at, 1000 steps from 0.1", "rate", [0, 1, 500, 999, 1000], 1000, 0.1, hint=RATE),
        case("rate_at, 7 steps from 2", "rate", [0, 3, 6], 7, 2.0, hint=RATE),
        case("one train_step", "step", X, y, 1, hint=ONCE),
        case("three times train_step", "step", X, y, 3, hint=ZERO_GRAD),
        case("evaluate, 20 samples, 5 at a time", "evaluate", *samples(20), 5),
        case("evaluate, 21 samples, 5 at a time", "evaluate", *samples(21), 5, hint=MEANS),
        case("evaluate, 3 samples, 64 at a time", "evaluate", *samples(3), 64),
        case("train, 5 steps, a line for each second", "train", *training(5, 2), hint=STEPS),
        case("train, 8 steps, one line", "train", *training(8, 100), hint=STEPS),
    ],
    twin=twin,
    drive=drive,
    trains=True,
    answers=len(ORDER),
    gaps=len(ORDER) + 1,  # two of them in the model
    tolerance=(1e-6, 1e-9),
    hint="The parts above this one are right. Compare this one with its docstring.",
    also_right=[
        {  # bare weights, a closure, inference mode, a scheduler
            "nn.ModuleList()": "nn.ParameterList()",
            LAYER: "bound = (6 / n_in) ** 0.5\n"
            "            self.layers.append(torch.empty(n_out, n_in).uniform_(-bound, bound))\n",
            "(layer(x))": "(x @ layer.T)",
            "last(x)": "x @ last.T",
            LEARN: "def closure():\n"
            "        loss = nn.functional.nll_loss(model(x).log_softmax(dim=-1), y)\n"
            "        loss.backward()\n        return loss\n\n    optimizer.step(closure)\n",
            "torch.no_grad()": "torch.inference_mode()",
            SET: "scheduler = torch.optim.lr_scheduler.LambdaLR(\n            optimizer, "
            "lambda _: rate_at(step, len(batches), 1.0)\n        )\n",
        },
    ],
    mistakes=[
        Mistake(
            "There are more weights than layers: a bias=True somewhere, or a layer too many?",
            {"bias=False": "bias=True"},
            {"(n_layers - 1)": "n_layers"},
            test=lambda seen: len(seen.results[0]["weights"]) > len(seen.expected[0]["weights"]),
        ),
        Mistake(
            "nn.Linear has drawn its weights by its own rule. Draw them again with "
            "nn.init.kaiming_uniform_(layer.weight).",
            {"            nn.init.kaiming_uniform_(layer.weight)\n": ""},
        ),
        Mistake(
            "The last layer gives a number for each class; it is one of self.layers, too.",
            {"return last(x)": "return x"},
        ),
        Mistake(
            "No output is above 1: is there a tanh after the last layer, too?",
            {"return last(x)": "return torch.tanh(last(x))"},
        ),
        Mistake(BETWEEN, {"torch.tanh(layer(x))": "layer(x)"}),
        Mistake(
            "That is the wrong way round: a tenth is for testing.",
            {"test, train =": "train, test ="},
        ),
        Mistake(
            "A sample and its class must go the same way: use the same order for X and y.",
            {"return (X[train], y[train])": "return (X[train], y[train.sort()[0]])"},
            test=lambda seen: not seen.results[0]["each with its class"],
        ),
        Mistake(
            "A sample that is trained on says nothing about new ones. Cut one order in two.",
            {"return (X[train], y[train])": "return (X, y)"},
            test=lambda seen: seen.results[0]["in both"],
        ),
        Mistake(
            "Every sample belongs in one of the two sets; none may be lost.",
            {"order[len(X) // 10 :]": "order[len(X) // 10 :][: 9 * len(X) // 10]"},
            test=lambda seen: seen.results[0]["in neither"],
        ),
        Mistake(
            "No sample is lost, and the sets have other sizes: a tenth, rounded down, is "
            "len(X) // 10.",
            {"[: len(X) // 10], order[len(X) // 10 :]": ".tensor_split([round(0.1 * len(X))])"},
            test=lambda seen: seen.results[0]["for testing"] != seen.expected[0]["for testing"],
        ),
        Mistake(
            "The first or the last tenth can be special in data that somebody has sorted, and "
            "every tenth in data that comes in turns.",
            {"order = torch.randperm(len(X))": "order = torch.arange(len(X))"},
            {"torch.randperm(len(X))": "torch.arange(len(X)).reshape(-1, 10).T.flatten()"},
        ),
        Mistake(RATE, {"1 - 0.7 * step": "1 - step"}),
        Mistake(ZERO_GRAD, {"    optimizer.zero_grad()\n": ""}),
        Mistake(ONCE, {"    optimizer.step()\n": ""}),
        Mistake(
            "An evaluation looks. No backward, no step.",
            {EVALUATED: "    nn.functional.cross_entropy(model(X), y).backward()\n" + EVALUATED},
            test=lambda seen: not seen.results[0]["weights and gradients as before"],
        ),
        Mistake(
            "Put the model's call under torch.no_grad(): otherwise it keeps all activations.",
            {"torch.no_grad()": "torch.enable_grad()"},
            test=lambda seen: seen.results[0]["a graph was recorded"],
        ),
        Mistake(
            "Give the model batch_size samples at a time; a large set may not fit otherwise.",
            {EVALUATED: "    batch_size = len(X)\n" + EVALUATED},
            test=lambda seen: not seen.results[0]["at most batch_size at a time"],
        ),
        Mistake(
            "Return a float: .item() gives one.", {"return total /": "return torch.tensor(total) /"}
        ),
        Mistake(MEANS, {', reduction="sum").item()': ").item() * batch_size"}),
        Mistake("Return the list of (step, train loss, test loss).", {"    return history\n": ""}),
        Mistake(
            "An entry for each line and none for the end: the chapter's own `train` adds one.",
            {"    return history": f"    step += 1\n    {AT_THE_END}\n    return history"},
            test=lambda seen: len(seen.results[0]["losses"]) == len(seen.expected[0]["losses"]) + 1,
        ),
        Mistake(
            "An entry is (step, train loss, test loss), with plain numbers.",
            {"return history": "return [entry[2] for entry in history]"},
            {"return history": "return [(entry[1], entry[2]) for entry in history]"},
        ),
        Mistake(
            "The first number of an entry is the number of the step, from 0.",
            {"append((step,": "append((step + 1,"},
        ),
        Mistake(
            "Both losses are the same: on which set is the test loss taken?",
            {"*test_set": "*train_set"},
        ),
        Mistake(
            "The very first losses are wrong: take both before the step, each on its set.",
            {
                f"        if step % every == 0:\n            {MEASURED}\n": "",
                PRINTED: f"{MEASURED}\n            {PRINTED}",
            },
        ),
        Mistake(
            STEPS,
            {"rate_at(step, len(batches), learning_rate)": "learning_rate"},
            {"(part[chosen] for part in train_set)": "train_set"},
        ),
        Mistake(
            "The losses and the weights are right. Each line is to be printed, once, and nothing "
            "else: print(line(step, train_loss, test_loss, seconds)).",
            {PRINTED: "pass"},
            {PRINTED: f"{PRINTED}\n            {PRINTED}"},
        ),
    ],
)
