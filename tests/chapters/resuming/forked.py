"""Ranks that are forked from a server, which has imported torch once: a tenth of a second each."""

import multiprocessing
import os
import traceback

from resuming import life

LIMIT = 60  # seconds that a call may take
processes = multiprocessing.get_context("forkserver") if hasattr(os, "fork") else None


def preload():
    """Let the server that forks import once what all ranks need."""
    processes.set_forkserver_preload(["ranklab.taught.resume", "torch._dynamo"])


class Forked:
    """Ranks in one process group, which call what they are given until they are closed."""

    def __init__(self, n, folder):
        pipes = [processes.Pipe() for _ in range(n)]
        self.ends = [ours for ours, _ in pipes]
        self.ranks = [
            processes.Process(target=_obey, args=(folder / "meet", r, n, theirs), daemon=True)
            for r, (_, theirs) in enumerate(pipes)
        ]
        for one in self.ranks:
            one.start()

    def run(self, function, *args):
        """What function(*args) returns on each rank."""
        for end in self.ends:
            end.send((function, args))
        assert all(end.poll(LIMIT) for end in self.ends), "A rank is stuck."
        answers = [end.recv() for end in self.ends]
        for _, raised in answers:
            assert not raised, raised
        return [answer for answer, _ in answers]

    def close(self):
        for one in self.ranks:
            one.kill()
            one.join()


def _obey(meet, rank, world_size, end):
    life.join(meet, rank, world_size)
    while True:
        function, args = end.recv()
        try:
            end.send((function(*args), None))
        except Exception:
            end.send((None, traceback.format_exc()))
