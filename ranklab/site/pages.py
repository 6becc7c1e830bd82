"""What the chapters' pages have beyond Sphinx: a Sphinx extension.

Under a chapter's title: the notebook and the script to take away, Colab and Binder. In the
outputs: whose line each one is, in the rank's color.
"""

import html
import re

from docutils import nodes
from sphinx.util import logging

log = logging.getLogger(__name__)
CHAPTER = re.compile(r"[0-9]{2}_\w+")
# What ipyparallel puts before a line that a rank printed, and before what it returned.
RANK = re.compile(r"^(\[(?:stdout|stderr):(\d+)\])", re.MULTILINE)


def setup(app):
    """Register with Sphinx."""
    app.add_config_value("ranklab_launch", {}, "env")
    app.connect("config-inited", _keep_launch_urls)
    app.connect("doctree-read", _complete)
    app.connect("html-page-context", _drop_thebe, priority=900)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}


def _keep_launch_urls(app, config):
    """The theme would hide these in a menu. Here they stand under the title."""
    options = config.html_theme_options
    repository = options["repository_url"].removeprefix("https://github.com/")
    branch, folder = options["repository_branch"], options.pop("path_to_docs")
    launch = options.pop("launch_buttons")
    interface = {"jupyterlab": "lab/tree", "classic": "tree"}[launch["notebook_interface"]]
    config.ranklab_launch = {
        "Colab": f"{launch['colab_url']}/github/{repository}/blob/{branch}/{folder}/{{}}.ipynb",
        "Binder": f"{launch['binderhub_url']}/v2/gh/{repository}/{branch}"
        f"?urlpath={interface}/{folder}/{{}}.ipynb",
    }


def _complete(app, doctree):
    name = app.env.docname
    if not CHAPTER.fullmatch(name):
        return
    section = next(doctree.findall(nodes.section))
    position = section.index(next(section.findall(nodes.title))) + 1
    section.insert(
        position, nodes.raw("", take_away(name, app.config.ranklab_launch), format="html")
    )
    for block in list(doctree.findall(nodes.literal_block)):
        if RANK.search(block.astext()) and "output" in block.parent.get("classes", []):
            block.replace_self(nodes.raw("", color_ranks(block.astext()), format="html"))
    for image in doctree.findall(nodes.image):
        if not image.get("alt"):
            log.warning("a figure has no alt text", location=image, type="ranklab")


def take_away(name: str, launch: dict[str, str]) -> str:
    """The links under the title of the chapter called `name`, as HTML."""
    items = [
        (f"notebooks/{name}.ipynb", "Notebook", "Download this chapter as a notebook", True),
        (f"scripts/{name}.py", "Script", "Download this chapter as a script for torchrun", True),
        (launch["Colab"].format(name), "Colab", "Open the notebook in Google Colab", False),
        (launch["Binder"].format(name), "Binder", "Open the notebook on Binder", False),
    ]
    links = "".join(
        f'<li><a class="take-{label.lower()}" href="{html.escape(url)}" title="{what}"'
        f"{' download' if download else ''}>{label}</a></li>"
        for url, label, what, download in items
    )
    return (
        f'<nav class="take-away" aria-label="Run or take away this chapter"><ul>{links}</ul></nav>'
    )


def color_ranks(text: str) -> str:
    """What the ranks printed, as HTML, with a mark in the rank's color before each line."""
    marked = RANK.sub(r'<span class="rank rank-\2">\1</span>', html.escape(text, quote=False))
    return f'<div class="highlight-myst-ansi notranslate"><div class="highlight"><pre>{marked}</pre></div></div>'


def _drop_thebe(app, pagename, templatename, context, doctree):
    """Nobody can run the cells in the page: leave out the scripts that would offer it."""
    context["script_files"] = [
        script
        for script in context.get("script_files", [])
        if "thebe"
        not in f"{getattr(script, 'filename', script)}{getattr(script, 'attributes', '')}"
    ]
