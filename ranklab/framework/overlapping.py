"""Chapter 12's buckets for chapter 13's framework: buffers that leave while backward computes."""

import functools

from ranklab.framework.world import World


class Overlapping:
    """Several buffers, each sent as soon as backward has filled it. `kind` makes one of them."""

    kind = None

    def __init__(self, parameters, nbytes=512 << 10):
        self.buckets, filling = [], []
        for p in reversed(parameters):  # as backward comes to them
            filling.append(p)
            full = sum(q.array.nbytes for q in filling) >= nbytes
            if full or p is parameters[0]:
                self.buckets.append(self.kind(filling))
                filling = []
        for bucket in self.buckets:
            for p in bucket.parameters:
                p.hooks.append(functools.partial(self.arrived, bucket))
        self.reset()

    def reset(self):
        self.waits = []  # a function for each buffer that is under way
        for bucket in self.buckets:
            bucket.missing = len(bucket.parameters)

    def arrived(self, bucket, p):
        """Called in the midst of backward: p's gradient is complete."""
        if not bucket.missing:
            raise RuntimeError(
                "A second backward before `step`: the gradients of the first are under way. "
                "`Flat` adds up those of several."
            )
        bucket.missing -= 1
        self.send(even_if_missing=False)

    def send(self, even_if_missing):
        """Send buffers, on all ranks in this order."""
        for bucket in self.buckets[len(self.waits) :]:
            if bucket.missing and not even_if_missing:
                break
            bucket.put()
            self.waits.append(World.talk.begin(bucket.buffer))

    def average(self):
        self.send(even_if_missing=True)
        for bucket, wait in zip(self.buckets, self.waits):
            wait()
            bucket.take()
        self.reset()

    def finish(self):
        """End what a backward has begun, where no step came after it."""
        if any(bucket.missing < len(bucket.parameters) for bucket in self.buckets):
            self.average()
