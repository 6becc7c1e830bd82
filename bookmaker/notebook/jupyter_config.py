"""JupyterLab's configuration for ``make lab`` and ``make write``: nothing that asks, no clutter."""

import json
import os
from pathlib import Path

# What a reader has no use for: a teacher's menus, a tab for clusters that `Ranks` starts.
UNWANTED = ("@jupyter/nbgrader", "ipyparallel-labextension")
# In a kernel that has just been started again, nobody knows %%px, and IPython would say that alone.
STARTUP = """
def _px(line, cell=""):
    from ranklab.errors import RankError

    raise RankError("There are no ranks yet: first run the cell with `ranks = Ranks(4)`, and "
                    "those above it.")

get_ipython().register_magic_function(_px, "line_cell", "px")
del _px
"""


def without_clutter(handler, page_config):
    """What the browser is told to load, without what a reader has no use for."""
    extensions = page_config.get("federated_extensions", [])
    kept = [extension for extension in extensions if extension["name"] not in UNWANTED]
    return {**page_config, "federated_extensions": kept}


def write(folder, name, text):
    """Put a file where Jupyter or IPython looks for it: in folders of the book's own."""
    path = Path(os.environ[folder], name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


if "IPYTHONDIR" in os.environ:  # as the Makefile has it
    write("IPYTHONDIR", "profile_default/startup/px.py", STARTUP)
if "JUPYTER_CONFIG_DIR" in os.environ:
    # No request to another host, and no question about one.
    quiet = {"fetchNews": "false", "checkForUpdates": False, "doNotDisturbMode": False}
    settings = {"@jupyterlab/apputils-extension:notification": quiet}
    name = "labconfig/default_setting_overrides.json"
    write("JUPYTER_CONFIG_DIR", name, json.dumps(settings))


c = get_config()  # noqa: F821  (Jupyter defines it for its configuration files)
c.ServerApp.tornado_settings = {"page_config_hook": without_clutter}
c.ServerApp.jpserver_extensions = {
    f"nbgrader.server_extensions.{name}": False
    for name in ("formgrader", "validate_assignment", "assignment_list", "course_list")
}

c.LabApp.news_url = None
c.LabApp.check_for_updates_class = "jupyterlab.NeverCheckForUpdate"
