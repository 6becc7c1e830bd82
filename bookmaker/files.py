"""Write a file whole or not at all."""

import os
import tempfile
from pathlib import Path


def replace(path: Path, content: str | bytes) -> bool:
    """Give ``path`` this content, text as UTF-8; False if it had it already.

    The file is never seen half written, and a failure leaves the old one.
    """
    content = content.encode() if isinstance(content, str) else content
    if path.exists() and path.read_bytes() == content:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o644
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return True
