"""Write a file whole or not at all."""

import os
import tempfile
from pathlib import Path


def replace(path: Path, text: str) -> bool:
    """Give ``path`` this text; False if it had it already. A failure leaves the old file."""
    if path.exists() and path.read_bytes() == text.encode():
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o644
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text.encode())
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return True
