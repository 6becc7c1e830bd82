"""JupyterLab's configuration for ``make lab`` and ``make write``: nothing that asks."""


def without_nbgrader(handler, page_config):
    """What the browser is told to load, without the menus that only a teacher wants."""
    extensions = page_config.get("federated_extensions", [])
    kept = [extension for extension in extensions if extension["name"] != "@jupyter/nbgrader"]
    return {**page_config, "federated_extensions": kept}


c = get_config()  # noqa: F821  (Jupyter defines it for its configuration files)
c.ServerApp.tornado_settings = {"page_config_hook": without_nbgrader}
c.ServerApp.jpserver_extensions = {
    f"nbgrader.server_extensions.{name}": False
    for name in ("formgrader", "validate_assignment", "assignment_list", "course_list")
}

# No request to another host, and no question about one.
c.LabApp.news_url = None
c.LabApp.check_for_updates_class = "jupyterlab.NeverCheckForUpdate"
