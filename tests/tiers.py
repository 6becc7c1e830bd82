"""What `make test` leaves to `make test-all`, which runs every night: the mark `everything`."""

import pytest


def few(rows, now):
    """Parameters of a test: `make test` has those that are `now`, `make test-all` has them all."""
    rows = [row if isinstance(row, tuple) else (row,) for row in rows]
    return [pytest.param(*row, marks=[] if now(*row) else pytest.mark.everything) for row in rows]
