"""The table of faults in book/stuck.md, made from fault_table.py. To write it into the page:

python tests/lab/fault_page.py
"""

import re
from pathlib import Path

from fault_table import GROUPS

PAGE = Path(__file__).parents[2] / "book" / "stuck.md"
HEADING = "## The table\n"
INTRODUCTION = """
Each row is a test that provokes it, on three ranks, with ranklab and with stock ipyparallel, where
the reader makes the process group with `dist.init_process_group("gloo", ...)`. *Hangs* means that
after 8 seconds the cell had neither ended nor said anything; PyTorch's own timeout ends it after 30
minutes. On the right stands a part of what ranklab says, word for word.
"""
# What `two_receive` ends in, with a timeout of 3 s.
EXAMPLE = """\
No progress: after 3 s the ranks that waited gave up.

Ranks 0 and 1 wait in a circle: rank 0 waits to receive float32[2] from rank 1 (line 4), rank 1 \
waits to receive float32[2] from rank 0 (line 4): nobody sends.

Until then:

rank 0 waits to receive float32[2] from rank 1
    line 4: dist.recv(box, src=1 - rank)

rank 1 waits to receive float32[2] from rank 0
    line 4: dist.recv(box, src=1 - rank)

rank 2 has finished the cell

PyTorch's own words: RuntimeError: Timed out waiting 3000ms for recv operation to complete

The process group does not work any more. Call ranks.reset() for a new one: the variables stay."""


def table():
    """Return the table as the page has it, a part for each group of faults."""
    lines = []
    for title, group in GROUPS.items():
        lines += [f"### {title}", "", "| | stock ipyparallel | ranklab |", "| --- | --- | --- |"]
        lines += [f"| {f.what} | {f.in_words or f.stock} | {_said(f)} |" for f in group]
        lines += [""]
    return "\n".join(lines)


def _said(fault):
    if not fault.excerpt:
        return "no process is left, and no file"
    words = " ".join(fault.excerpt.split())
    return f"*{words}*" if "*" not in words else f"`{words}`"


def whole(text):
    """Return `text`, the page, with the table and the example as they are here."""
    before, _, after = text.partition(HEADING)
    rest = re.search(r"^## .*", after, re.MULTILINE | re.DOTALL)
    before = re.sub(
        r"```text\n.*?\n```", lambda _: f"```text\n{EXAMPLE}\n```", before, flags=re.DOTALL
    )
    return f"{before}{HEADING}{INTRODUCTION}\n{table()}\n{rest[0]}"


if __name__ == "__main__":
    PAGE.write_text(whole(PAGE.read_text()))
