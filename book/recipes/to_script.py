"""Turn a notebook of your own into a script for torchrun."""

import subprocess

import nbformat

cells = [
    "from ranklab import Ranks\nranks = Ranks(2, device='cpu')",
    "%%px\nx = torch.full((2,), float(rank))\ndist.all_reduce(x)",
    "print('the sum, on every rank:', ranks['x'])",
]
cells = [nbformat.v4.new_code_cell(cell) for cell in cells]
nbformat.write(nbformat.v4.new_notebook(cells=cells), "mine.ipynb")  # yours

convert = "jupyter nbconvert --log-level ERROR --to ranklab_script mine.ipynb"
launch = "torchrun --standalone --nproc-per-node 2 mine.py"
for command in (convert, launch):
    print("$", command, flush=True)
    subprocess.run(command.split(), check=True)
