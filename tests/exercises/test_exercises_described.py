"""What an answer raised, as plain data: where it was, also where Python has no line for it."""

import os
import sys
import types

import pytest

from ranklab.exercises.on_rank import _described


def in_a_with():
    with open(os.devnull):
        return sys._getframe()


def test_an_interrupt_at_an_instruction_that_is_of_no_line():
    frame, code = in_a_with(), in_a_with.__code__
    of_no_line = next(start for start, _, line in code.co_lines() if line is None)
    way = types.TracebackType(None, frame, of_no_line, -1)
    if way.tb_lineno == -1:
        pytest.skip("this Python notes the line of a traceback when it is made")
    assert way.tb_lineno is None
    (place,) = _described(KeyboardInterrupt().with_traceback(way))["places"]
    assert place["line"] == code.co_firstlineno
