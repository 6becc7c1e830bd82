"""MathJax from the site itself: a Sphinx extension.

The files come from the package sphinx-mathjax-offline, which would copy all of its 22 MB on
every build. What a page can ask for is a part of that.
"""

import importlib.util
import shutil
from pathlib import Path

WANTED = ("tex-chtml.js", "a11y", "input/tex/extensions", "output/chtml/fonts/woff-v2", "sre", "ui")


def setup(app):
    """Register with Sphinx."""
    app.connect("config-inited", _name_path)
    app.connect("build-finished", _copy)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _name_path(app, config):
    config.mathjax_path = "mathjax/tex-chtml.js"


def _copy(app, error):
    if error:
        return
    # The package's name has hyphens, so that it cannot be imported in the usual way.
    package = importlib.util.find_spec("sphinx-mathjax-offline").submodule_search_locations[0]
    source, target = Path(package, "static/mathjax"), Path(app.outdir, "_static/mathjax")
    for name in WANTED:
        if (target / name).exists():
            continue
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name)
        else:
            shutil.copy2(source / name, target / name)
