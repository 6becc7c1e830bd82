# Generated from book/25_resume.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: 8746d6338b4c).
#
# === All or nothing ===================================================================
#
# Build, about 15 minutes. Write `save_whole(path, data)`: afterwards the file `path` (a
# string) holds `data` (bytes). The check looks at what a kill would leave, before and
# after each call that reaches the disk. At each of these points `path` must hold all of
# the old or all of the new. A next call must then work, whatever the one before has
# left behind, and a call that was not killed leaves no other file in the folder. What
# you write on the way must lie in the same folder, for a file is renamed in one step
# only within a disk. And before the new name counts, the bytes must be on the disk
# (`os.fsync`), not merely handed to the system.
#
#     python scripts/exercises/25_save_whole.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

import os


def save_whole(path, data):
    """Make `data` the content of the file `path`, all of it or nothing."""
    # TODO: never open the file itself for writing.
    # YOUR CODE HERE
    raise NotImplementedError()


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("save_whole", save_whole) else 1)
