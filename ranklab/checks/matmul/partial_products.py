"""What each worker contributes to a product that is cut along the inner dimension."""

import numpy as np

from ranklab.checks.matmul._matrices import LOOP, as_array, case
from ranklab.exercises import Exercise, Mistake

COLUMNS, ROWS = "np.array_split(A, workers, axis=1)", "np.array_split(B, workers, axis=0)"
PRODUCTS = "[a @ b for a, b in zip(columns, rows, strict=True)]"  # in the solution
EACH = "len(B) // workers"


def sharing(n, m, p, workers):
    many = f"{workers} worker{'s' if workers > 1 else ''}"
    return case(f"{n}×{m} times {m}×{p}, {many}", n, m, p, workers)


def twin(inputs):
    """The products of matching column blocks of A and row blocks of B."""
    (A, B, workers) = inputs[0]
    columns, rows = A.tensor_split(workers, dim=1), B.tensor_split(workers, dim=0)
    return [[(a @ b).numpy() for a, b in zip(columns, rows, strict=True)]]


def drive(answer, A, B, workers):
    """What the answer makes of arrays, which share the arguments' memory."""
    found = answer(A.numpy(), B.numpy(), workers)
    return [as_array(one) for one in found] if isinstance(found, (list, tuple)) else as_array(found)


def with_zeros_elsewhere(A, B, workers):
    parts = np.array_split(np.arange(len(B)), workers)
    return [np.where(np.isin(np.arange(len(B)), part), A, 0) @ B for part in parts]


exercise = Exercise(
    cases=[
        sharing(2, 4, 3, 2),
        sharing(3, 7, 2, 3),
        sharing(2, 2, 2, 5),
        sharing(4, 6, 1, 1),
        sharing(1, 1, 1, 1),
        sharing(1, 5, 1, 4),
        sharing(64, 65, 3, 4),
    ],
    twin=twin,
    drive=drive,
    limit=3.0,
    hint="The partial products must add up to A @ B.",
    also_right=[
        with_zeros_elsewhere,
        {"import numpy as np": "import numpy as np, torch", "[a @ b": "[torch.tensor(a @ b)"},
    ],
    mistakes=[
        Mistake(LOOP, {"    return": "    while True:\n        pass\n    return"}, happened="slow"),
        Mistake(
            "`np.split` cuts into equal parts alone. Of 7 columns, 3 workers get 3, 2 and 2.",
            {"np.array_split(A": "np.split(A", "np.array_split(B": "np.split(B"},
            happened="error",
            test=lambda seen: "equal division" in seen.error,
        ),
        Mistake(
            "The columns of A and the rows of B are to be cut at the same places. Is A cut by "
            "columns, and B by rows?",
            {"axis=1": "axis=0"},
            happened="error",
            test=lambda seen: "mismatch in its core dimension" in seen.error,
        ),
        Mistake(
            "Is there a `*` where `@` is meant? `*` multiplies entry by entry.",
            {"a @ b": "a * b"},
            happened="error",
            test=lambda seen: "broadcast" in seen.error,
        ),
        Mistake(
            "A slice of an array is a view: what is written into it is written into A.",
            {f"return {PRODUCTS}": f"found = {PRODUCTS}\n    columns[0][:] = 0\n    return found"},
            happened="changed",
        ),
        Mistake("The list of partial products has to be returned.", {"return [": "["}),
        Mistake(
            "Return a list, with one array for each worker.", {PRODUCTS: f"np.stack({PRODUCTS})"}
        ),
        Mistake(
            "Return a list with one partial product for each worker; adding them up is for later.",
            {PRODUCTS: f"sum({PRODUCTS})"},
        ),
        Mistake(
            "Every worker has an entry in the list, also one that has nothing to multiply.",
            {"strict=True)": "strict=True) if len(b)"},
        ),
        Mistake(
            "The list has one entry for each worker: `workers` of them, whatever the shapes are.",
            {"A, workers, ": "A, len(B), ", "B, workers, ": "B, len(B), "},
        ),
        Mistake(
            "Every entry of the list is an array of floats, as A and B are.",
            {"[a @ b": "[(a @ b).tolist()"},
            {"[a @ b": "[(a @ b).astype(int)"},
            test=lambda seen: seen.found in ("type", "dtype"),
        ),
        Mistake(
            "Cut the inner dimension: the columns of A, and the same rows of B. Each partial "
            "product then has the shape of the whole one.",
            {"axis=1": "axis=0", ROWS: "[B] * workers"},
            {"axis=0": "axis=1", COLUMNS: "[A] * workers"},
        ),
        Mistake(
            "They add up to the whole, but the parts are not those that np.array_split makes: "
            "each worker's columns are neighbors, and the first worker has the first ones.",
            {
                COLUMNS: "[A[:, w::workers] for w in range(workers)]",
                ROWS: "[B[w::workers] for w in range(workers)]",
            },
            {"zip(columns, rows": "zip(columns[::-1], rows[::-1]"},
        ),
        Mistake(
            "They add up to the whole, but the parts are not those that np.array_split makes: "
            "the first ones get one column more where it does not come out even.",
            {
                COLUMNS: f"np.split(A, [{EACH} * w for w in range(1, workers)], axis=1)",
                ROWS: f"np.split(B, [{EACH} * w for w in range(1, workers)])",
            },
        ),
        Mistake(
            "They do not add up to A @ B: do the columns that are left over belong to somebody?",
            {
                COLUMNS: f"[A[:, w * ({EACH}) : (w + 1) * ({EACH})] for w in range(workers)]",
                ROWS: f"[B[w * ({EACH}) : (w + 1) * ({EACH})] for w in range(workers)]",
            },
        ),
    ],
)
