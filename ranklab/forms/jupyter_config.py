"""JupyterLab's configuration for ``make lab``: saving a notebook updates its manuscript."""

from ranklab.forms import saving

c = get_config()  # noqa: F821  (Jupyter defines it for its configuration files)
c.FileContentsManager.pre_save_hook = saving.before
c.FileContentsManager.post_save_hook = saving.after
