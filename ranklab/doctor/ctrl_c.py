"""Ctrl-C in the kernel, pressed by somebody who is impatient."""

import contextlib
import signal
import threading


@contextlib.contextmanager
def pressed_once():
    """Let two Ctrl-C in a row be one.

    Where the second comes while the first is leaving `threading.Condition.wait`, Python gives up a
    lock that it does not hold, and all that it tells is a RuntimeError.
    """
    try:
        yield
    except RuntimeError as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise error.__context__ from None
        raise


@contextlib.contextmanager
def deaf_to_it():
    """Do not hear it meanwhile."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
