"""Which exercises a reader has done: kept in the reader's own data folder, across restarts.

An empty file for each, named like the exercise: so no mark is lost, whoever else writes one.
"""

import os
from pathlib import Path

from ranklab import checks

_BOOKS = Path(checks.__file__).parent


def done(name):
    """Note that the exercise is done; return a sentence with the count of its chapter.

    "" for an exercise that is not the book's, and where nothing can be written.
    """
    files = checks.files()
    chapter = files[name].parent
    if chapter.parent != _BOOKS:
        return ""
    try:
        folder().mkdir(parents=True, exist_ok=True)
        (folder() / name).touch()
        marked = set(os.listdir(folder()))
    except OSError:
        return ""
    of_chapter = {other for other, file in files.items() if file.parent == chapter}
    count = len(marked & of_chapter)
    return f"Done: {count} of the {len(of_chapter)} exercises of this chapter."


def folder():
    """Where the marks lie: below RANKLAB_DATA, if set, else where the system keeps such files."""
    if data := os.environ.get("RANKLAB_DATA"):
        return Path(data) / "done"
    import platformdirs

    return Path(platformdirs.user_data_dir("ranklab", appauthor=False)) / "done"
