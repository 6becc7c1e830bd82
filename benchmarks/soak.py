"""Two hundred random faults in one notebook, and a chapter executed thirty times in a row.

    python benchmarks/soak.py [--faults 200] [--runs 30] [--seed 1] [--first STEP] [--kind NAME ...]

One kernel holds four ranks with a timeout of three seconds. Step after step a fault is provoked
(soaking/faults.py), the advice of the error is followed (`ranks.reset()` or `ranks.restart()`), and
then an all-reduce has to be right, a variable has to be there if the processes were to live on, and
no process, thread, open file or temporary file may be left that was not there before. At the end
the kernel is killed, and everything has to be gone.

A fault depends on the seed and the number of its step alone: `--first 17 --faults 1` is step 17.
Prints a table; exits with 1 where a cell hung, something was left behind, or a result was wrong.
"""

import argparse
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from soaking.faults import ALL
from soaking.measure import Ledger
from soaking.notebook import Hang, Notebook

from ranklab.start.guardian import belonging_to

RANKS, TIMEOUT = 4, 3
START = f"ranks = Ranks({RANKS}, timeout={TIMEOUT})"
CHAPTER = Path(__file__).parents[1] / "notebooks" / "06_messages.ipynb"
RUN_LIMIT = 240  # seconds for one execution of the chapter
ADVICE = re.compile(r"ranks\.(reset|restart)\(\)")
CHECK = f"""%%px
check = torch.full((3,), float(rank + 1))
dist.all_reduce(check)
assert check.tolist() == [{sum(range(1, RANKS + 1))}.0] * 3 and world_size == {RANKS}
pids = __import__("os").getpid()"""


class Soak:
    """One notebook, in which fault after fault is provoked."""

    def __init__(self, folder, seed, log=None):
        self.folder, self.seed, self.log = folder, seed, log
        self.ledger = Ledger()
        self.notebook = None
        self.step = 0

    def open(self):
        """Start a kernel with its ranks."""
        self.notebook = Notebook(self.folder)
        self._must(START)
        self.ledger.begin(self.notebook)

    def provoke(self, step, name):
        """Provoke a fault of the kind `name`, follow what is advised, and check everything."""
        self.step, self.name = step, name
        fault = ALL[name](random.Random(f"{self.seed}/{step}/{name}"), RANKS, TIMEOUT)
        said = f"step {step}: {name}, {fault.way}"
        try:
            self._must(f"ranks['token'] = {step}")
            *before, last = fault.cells
            for cell in before:
                self._must(cell)
            during = [(at, self._action(*what)) for at, *what in fault.during]
            outcome = self.notebook.run(last, fault.within, during)
            self.ledger.note(fault.way, outcome.seconds)
            self._tell(said, fault, outcome)
            self._judge(fault, outcome)
            fresh = self._recover(outcome, fault.then)
            self._check(fresh, advised=bool(ADVICE.search(outcome.error)))
            said += f": {outcome.seconds:.1f} s"
        except Hang as hang:
            self._finding(f"hang: {hang}", fault)
            self._start_over()
        except Wrong as wrong:
            self._finding(str(wrong), fault)
            self._start_over()
        for problem in self.ledger.measure(self.notebook):
            self._finding(problem, fault)
        print(f"{said}; {self.ledger.last()}", flush=True)

    def _action(self, method, *arguments):
        return lambda: getattr(self.notebook, method)(*arguments)

    def _tell(self, said, fault, outcome):
        if self.log:
            parts = [f"=== {said}", *fault.cells, str(fault.during), outcome.shown[-3000:]]
            self.log.write("\n--\n".join([*parts, outcome.error[-6000:], ""]))
            self.log.flush()

    def _judge(self, fault, outcome):
        text = f"{outcome.shown}\n{outcome.error}"
        if fault.expect is None and outcome.error:
            raise Wrong(f"an error where none belongs: {outcome.error[:600]}")
        came_too_late = len(outcome.actions) < len(fault.during)
        if fault.expect and not came_too_late and not re.search(fault.expect, text, re.S):
            raise Wrong(f"not said: {fault.expect!r}. Said: {text[-900:]}")
        name = outcome.error.partition(":")[0]
        if name not in ("", "RankError", "KeyboardInterrupt", "ArgumentError", "MissingOnRanks"):
            raise Wrong(f"an error of the lab's own: {text[-900:]}")

    def _recover(self, outcome, then):
        """Call what the error says, at most three times; return whether the processes are fresh."""
        advice = ADVICE.findall(outcome.error)
        call = f"ranks.{advice[-1]}()" if advice else then
        call = f"ranks.{call}()" if call in ("reset", "restart") else call
        if then.startswith("ranks ="):
            call = then
        fresh = False
        for _ in range(3):
            if not call:
                return fresh
            name = "reset" if "reset" in call else "restart"
            fresh = fresh or name == "restart"
            again = self.notebook.run(call, 60)
            self.ledger.note(f"ranks.{name}()", again.seconds)
            if not again.error:
                return fresh
            advice = ADVICE.findall(again.error)
            self.ledger.second_steps.append(
                f"step {self.step}, {self.name}: {call} raised, "
                f"{'and says ' + advice[-1] if advice else ''}"
            )
            call = f"ranks.{advice[-1]}()" if advice else ""
            if not call:
                raise Wrong(f"{name} raised, with no way on: {again.error[:900]}")
        raise Wrong(f"three ways on, and none works: {again.error[:900]}")

    def _check(self, fresh, advised):
        outcome = self.notebook.run(CHECK, 30)
        if outcome.error and not fresh and not advised:
            # The error was of a kind after which one may go on. It is told now what to call.
            return self._check(self._recover(outcome, ""), advised=True)
        if outcome.error:
            raise Wrong(f"the all-reduce after it: {outcome.error[:900]}")
        if not fresh and self.notebook.value("ranks['token']") != [self.step] * RANKS:
            raise Wrong("a variable did not live on")
        if fresh:
            self.ledger.fresh()

    def _must(self, cell):
        outcome = self.notebook.run(cell, 60)
        if outcome.error:
            raise Wrong(f"{cell!r} raised {outcome.error[:900]}")
        return outcome

    def _finding(self, what, fault):
        text = f"seed {self.seed} step {self.step} {self.name} ({fault.way}): {what}"
        self.ledger.findings.append(text)
        print(f"FINDING {text}\n  cells: {fault.cells}\n  during: {fault.during}", flush=True)

    def _start_over(self):
        """Whatever was wrong: the next step begins with a kernel that works."""
        try:
            fresh = self.notebook.run(START, 60)
            if not fresh.error:
                self.ledger.fresh()
                return
            print(f"a fresh start raised: {fresh.error[-500:]}", flush=True)
        except Hang as hang:
            print(f"a fresh start hung: {hang}", flush=True)
        self.notebook.end(kill=True)
        time.sleep(5)
        self.open()

    def close(self):
        """Close the ranks, then start others and kill the kernel; nothing may be left."""
        self._must("ranks.close()")
        self.step, self.name = "end", "close"
        left = self.ledger.left_behind(self.notebook, after=0)
        self._must(START)
        self._must("%%px --noblock\ndist.recv(torch.zeros(1), src=rank ^ 1)")
        self.ledger.see(self.notebook)
        self.notebook.end(kill=True)
        left += self.ledger.left_behind(self.notebook, after=0)
        self.ledger.findings += [f"at the end: {what}" for what in left]


class Wrong(Exception):
    """Something is not as it should be, and the kernel goes on."""


def steps(seed, first, count, kinds):
    """Yield (number, kind): kinds in random order, each once before any comes again."""
    rng, deck, number = random.Random(seed), [], 0
    while number < first + count - 1:
        if not deck:
            deck = sorted(kinds)
            rng.shuffle(deck)
        number += 1
        name = deck.pop()
        if number >= first:
            yield number, name


def soak(folder, arguments):
    """Provoke faults; print the table; return what was found."""
    began = time.monotonic()
    run = Soak(folder, arguments.seed, arguments.log)
    run.open()
    try:
        kinds = arguments.kind or list(ALL)
        for step, name in steps(arguments.seed, arguments.first, arguments.faults, kinds):
            run.provoke(step, name)
        run.close()
    finally:
        run.notebook.end(kill=True)
    minutes = (time.monotonic() - began) / 60
    print(
        f"\n{arguments.faults} faults of {len(kinds)} kinds in {minutes:.1f} min, "
        f"seed {arguments.seed}"
    )
    run.ledger.table()
    return run.ledger.findings + run.ledger.growth()


def chapters(folder, runs):
    """Execute the chapter `runs` times in a row; print the figures; return what was found."""
    findings, seconds = [], []
    home, temporary = Path(folder) / "home", Path(folder) / "t"
    for path in (home, temporary):
        path.mkdir(exist_ok=True)
    environment = {**os.environ, "TMPDIR": str(temporary), "HOME": str(home)}
    environment |= {"IPP_NONINTERACTIVE": "1", "IPYTHONDIR": str(home / "ipython")}
    for run in range(1, runs + 1):
        notebook = nbformat.read(CHAPTER, as_version=4)
        client = NotebookClient(
            notebook,
            timeout=RUN_LIMIT / 2,
            kernel_name="python3",
            iopub_timeout=60,
            resources={"metadata": {"path": str(folder)}},
        )
        began = time.monotonic()
        try:
            client.execute(env=environment, stderr=subprocess.DEVNULL)
        except Exception as error:
            findings.append(f"run {run}: {type(error).__name__}: {str(error)[-1500:]}")
        seconds.append(time.monotonic() - began)
        if left := [one for path in temporary.iterdir() for one in belonging_to(str(path))]:
            findings.append(f"run {run}: processes left: {left}")
        if left := sorted(path.name for path in temporary.glob("ranklab-*")):
            findings.append(f"run {run}: left in the temporary folder: {left}")
        print(f"run {run}: {seconds[-1]:.1f} s", flush=True)
    if runs:
        print(
            f"\n{CHAPTER.stem} executed {runs} times: median {statistics.median(seconds):.1f} s, "
            f"longest {max(seconds):.1f} s, {len(findings)} findings"
        )
    return findings


def main():
    """Run both; return 1 if anything was found."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=1, metavar="STEP")
    parser.add_argument("--kind", nargs="*", choices=sorted(ALL))
    parser.add_argument("--log", type=argparse.FileType("w"), help="what each fault looked like")
    arguments = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="soak-")
    findings = []
    try:
        if arguments.runs:
            findings += chapters(folder, arguments.runs)
        if arguments.faults:
            findings += soak(folder, arguments)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for finding in findings:
        print(f"\nFINDING {finding}")
    print(f"\n{len(findings)} findings" if findings else "\nnothing found")
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main())
