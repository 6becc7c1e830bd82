"""JupyterLab's configuration for ``make lab``: saving a notebook updates its manuscript."""

import warnings

from ranklab.forms import saving

# The server sets each hook twice and warns of it; there is nothing to do about that.
warnings.filterwarnings("ignore", message="Overriding existing .*_save_hook")

c = get_config()  # noqa: F821  (Jupyter defines it for its configuration files)
c.FileContentsManager.pre_save_hook = saving.before
c.FileContentsManager.post_save_hook = saving.after
