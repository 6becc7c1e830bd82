"""Ctrl-C while the kernel waits for its ranks: noted when it comes, acted on between two waits.

Raised at once, as Python does it, a second one may come while the first is on its way out of
`threading.Condition.wait`. The lock in there is then held for good, and whoever waits next never
comes back.
"""

import contextlib
import signal
import threading
import time

SLICE = 0.05  # seconds of waiting, after which a Ctrl-C is acted on


class Noted:
    """Has Ctrl-C been pressed?"""

    pressed = False

    def press(self, *_):
        self.pressed = True

    def wait(self, event, seconds):
        """event.wait(seconds), in slices; KeyboardInterrupt is raised between two of them."""
        deadline = time.monotonic() + seconds
        while True:
            over = event.wait(min(SLICE, seconds))
            if self.pressed:
                raise KeyboardInterrupt
            seconds = deadline - time.monotonic()
            if over or seconds <= 0:
                return over


@contextlib.contextmanager
def noted():
    """Note it meanwhile, in a Noted; outside of the main thread it never comes."""
    noted = Noted()
    if threading.current_thread() is not threading.main_thread():
        yield noted
        return
    before = signal.signal(signal.SIGINT, noted.press)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)
