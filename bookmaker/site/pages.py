"""What the chapters' pages have beyond Sphinx: a Sphinx extension.

Under a chapter's title: the notebook and the script to take away, Colab and Binder. What a cell's
`fold` names, and the sections called "Extra: ...", are folded. In the outputs: whose line each one
is, in the rank's color.
"""

import hashlib
import html
import re
from pathlib import Path

from docutils import nodes
from pygments.lexer import RegexLexer, bygroups, using
from pygments.lexers import PythonLexer
from pygments.token import Name
from sphinx.util import logging

from bookmaker.folders import CHAPTER
from bookmaker.manuscript import programs

log = logging.getLogger(__name__)
EXTRA = "For those who want to know more. Nothing later depends on it."
CODE = re.compile("`(.+?)`")  # in a cell's `fold`
RESULT = re.compile(r"\w+ = ")  # how a line of `result` begins
SHOWN = (nodes.literal_block, nodes.image, nodes.raw)
# What ipyparallel puts before a line that a rank printed, and before what it returned.
RANK = re.compile(r"^(\[(?:stdout|stderr|output):(\d+)\])", re.MULTILINE)


class MagicCell(RegexLexer):
    """Highlights a magic, then Python: a `%%px` cell, or a program. (IPython's leaves it plain.)"""

    name = "magic"
    tokens = {"root": [(r"(%%.*\n?)([\s\S]*)", bygroups(Name.Decorator, using(PythonLexer)))]}  # noqa: RUF012 (pygments wants it so)


def setup(app):
    """Register with Sphinx."""
    app.add_lexer("magic", MagicCell)
    app.add_config_value("ranklab_launch", {}, "env")
    app.add_config_value("ranklab_code", "", "env")
    app.connect("config-inited", _keep_launch_urls)
    app.connect("doctree-read", _complete)
    app.connect("missing-reference", _name_coming_chapter)
    app.connect("doctree-resolved", _check_figures, priority=900)
    app.connect("doctree-resolved", _define_terms, priority=900)
    app.connect("doctree-resolved", _drop_thebe_settings, priority=900)
    app.connect("html-page-context", _drop_thebe, priority=900)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}


def _keep_launch_urls(app, config):
    """The theme would hide these in a menu. Here they stand under the title."""
    # A change of the book's own extensions or style makes every page anew.
    own = [*Path(__file__).parent.glob("*.py"), *Path(app.srcdir, "_static").glob("*.css")]
    code = [path.read_bytes() for path in sorted(own)]
    config.ranklab_code = hashlib.sha256(b"".join(code)).hexdigest()
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
    blocks = [block.astext() for block in doctree.findall(nodes.literal_block)]
    files = programs.begun(blocks)
    links = take_away(name, app.config.ranklab_launch, files)
    section.insert(position, nodes.raw("", links, format="html"))
    for cell in list(doctree.findall(_is_folded_cell)):
        line = CODE.sub(r"<code>\1</code>", html.escape(cell["cell_metadata"]["fold"]))
        hidden = len(cell) if _says_only_results(cell) else 1
        cell[:hidden] = _folded(*cell.children[:hidden], kind="fold", line=line)
    for extra in list(doctree.findall(_is_extra)):
        extra[1:] = _folded(*extra.children[1:], kind="extra", line=EXTRA)
    for block in list(doctree.findall(nodes.literal_block)):
        _complete_block(block, block.astext())


def _is_folded_cell(node) -> bool:
    is_cell = isinstance(node, nodes.container) and node.get("nb_element") == "cell_code"
    return is_cell and "fold" in node["cell_metadata"]


def _says_only_results(cell) -> bool:
    """Is all that comes out of a cell results, which the text quotes?"""
    shown = [n for n in cell[1].findall() if isinstance(n, SHOWN)] if len(cell) > 1 else []
    lines = [line for n in shown for line in n.astext().splitlines() or [""]]
    return all(RESULT.match(line) for line in lines)


def _is_extra(node) -> bool:
    return isinstance(node, nodes.section) and node.children[0].astext().startswith("Extra: ")


def _folded(*children, kind, line):
    """The nodes behind one line, which opens them: by mouse, by keyboard, without a script."""
    begin = f'<details class="{kind}"><summary>{line}</summary>'
    return [
        nodes.raw("", begin, format="html"),
        *children,
        nodes.raw("", "</details>", format="html"),
    ]


def _complete_block(block, text):
    """Highlight a piece of code, or of what came out, as what it is."""
    if text.startswith(("%%px", "%%writefile")):
        block["language"] = "magic"
    elif "stream" in block["classes"] and RANK.search(text):
        lines = color_ranks(text, " ".join(block["classes"]))
        block.replace_self(nodes.raw("", lines, format="html"))
    elif "traceback" in block["classes"] and "Traceback" not in text:
        block["language"] = "text"  # an error of the lab: a sentence, not a traceback


def _name_coming_chapter(app, env, node, content):
    """A chapter may refer to one that is not written yet: its number, and no link."""
    target = node["reftarget"].rpartition("/")[2]
    if node["reftype"] != "doc" or not CHAPTER.fullmatch(target):
        return None
    return nodes.inline("", f"chapter {int(target[:2])} (to come)")


def _check_figures(app, doctree, name):
    """A figure that cannot be seen must be told: without alt text the build fails."""
    for image in doctree.findall(nodes.image):
        if not image.get("alt"):
            log.warning("%s: a figure has no alt text (mystnb: image: alt:)", name)


def _define_terms(app, doctree, name):
    """A link to the glossary shows the definition when the mouse is over it."""
    definitions = _definitions(app)
    for link in doctree.findall(nodes.reference):
        term = link.get("refuri", "").partition("glossary.html#")[2]
        if term in definitions:
            link["reftitle"] = definitions[term]


def _definitions(app) -> dict[str, str]:
    """{the id of a term: what the glossary says of it}"""
    if "glossary" not in app.env.all_docs:
        return {}
    if not hasattr(app, "ranklab_definitions"):
        app.ranklab_definitions = {
            id: item.next_node(nodes.definition).astext().replace("\n", " ")
            for item in app.env.get_doctree("glossary").findall(nodes.definition_list_item)
            for term in item.findall(nodes.term)
            for id in term["ids"]
        }
    return app.ranklab_definitions


def take_away(name: str, launch: dict[str, str], files: list[str] = ()) -> str:
    """The links under the title of the chapter called `name`, as HTML. files: of its programs."""
    items = [
        (f"notebooks/{name}.ipynb", "take-file", "Download notebook", " download"),
        (f"scripts/{name}.py", "take-file", "Download script", " download"),
        *((programs.path_of(name, f), "take-file", f"Download {f}", " download") for f in files),
        (launch["Colab"].format(name), "take-open", "Open in Colab", ""),
        (launch["Binder"].format(name), "take-open", "Open in Binder", ""),
    ]
    links = "".join(
        f'<li><a class="{kind}" href="{html.escape(url)}"{download}>{text}</a></li>'
        for url, kind, text, download in items
    )
    # Shown by the script that it needs: book/_static/code.js.
    links += '<li><button class="show-code" type="button" hidden>Show all code</button></li>'
    label = "Run this chapter, or take it away"
    return f'<nav class="take-away" aria-label="{label}"><ul>{links}</ul></nav>'


def color_ranks(text: str, classes: str) -> str:
    """What the ranks printed, as HTML, with a mark in the rank's color before each line."""
    marked = RANK.sub(r'<span class="rank rank-\2">\1</span>', html.escape(text, quote=False))
    return (
        f'<div class="{classes} highlight-none notranslate">'
        f'<div class="highlight"><pre>{marked}</pre></div></div>'
    )


def _drop_thebe(app, pagename, templatename, context, doctree):
    """Nobody can run the cells in the page: leave out the scripts that would offer it."""
    scripts = context.get("script_files", [])
    context["script_files"] = [script for script in scripts if not _is_thebe(script)]
    context["css_files"] = [css for css in context.get("css_files", []) if not _is_thebe(css)]


def _is_thebe(file) -> bool:
    return "thebe" in f"{getattr(file, 'filename', file)} {getattr(file, 'attributes', '')}"


def _drop_thebe_settings(app, doctree, name):
    for node in list(doctree.findall(nodes.raw)):
        if "x-thebe-config" in node.astext() or node.astext().startswith("<script>kernelName"):
            node.parent.remove(node)
