"""MathJax from the site itself: a Sphinx extension.

The files come from the package sphinx-mathjax-offline, which would copy all of its 22 MB on
every build. What a page can ask for is a part of that.
"""

import importlib.util
import shutil
from importlib.metadata import version
from pathlib import Path

PACKAGE = "sphinx-mathjax-offline"
WANTED = ("tex-chtml.js", "a11y", "input/tex/extensions", "output/chtml/fonts/woff-v2", "sre", "ui")


def setup(app):
    """Register with Sphinx."""
    app.connect("config-inited", _name_path)
    app.connect("build-finished", _copy)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def copy(source: Path, target: Path, draft: Path) -> None:
    """Make ``target`` the part of ``source`` that is wanted, whole or not at all.

    ``draft``, on the same disk, is where the copy grows; what an interrupted one left there goes.
    """
    if target.exists():
        return
    shutil.rmtree(draft, ignore_errors=True)
    for name in WANTED:
        (draft / name).parent.mkdir(parents=True, exist_ok=True)
        if (source / name).is_dir():
            shutil.copytree(source / name, draft / name)
        else:
            shutil.copy2(source / name, draft / name)
    target.parent.mkdir(parents=True, exist_ok=True)
    draft.rename(target)


def _folder() -> str:
    # Another version of the package is another folder, and so is copied.
    return f"mathjax-{version(PACKAGE)}"


def _name_path(app, config):
    config.mathjax_path = f"{_folder()}/tex-chtml.js"


def _copy(app, error):
    if error:
        return
    # The package's name has hyphens, so that it cannot be imported in the usual way.
    package = importlib.util.find_spec(PACKAGE).submodule_search_locations[0]
    static = Path(app.outdir, "_static")
    for other in set(static.glob("mathjax*")) - {static / _folder()}:
        shutil.rmtree(other)
    draft = Path(app.outdir).parent / "mathjax.draft"
    copy(Path(package, "static/mathjax"), static / _folder(), draft)
