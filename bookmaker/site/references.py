"""How the references page shows an entry: a Sphinx extension.

An entry's `note` says what it is good for. It comes last, as a line of its own (book.css).
"""

from pybtex.plugin import register_plugin
from pybtex.richtext import Tag, Text
from pybtex.style.formatting.unsrt import Style as Unsorted


class Style(Unsorted):
    """The plain style, sorted by author and year, with the note at the end."""

    default_sorting_style = "author_year_title"

    def format_entry(self, label, entry, bib_data=None):
        """Format one entry; see pybtex."""
        note = entry.fields.pop("note", None)
        formatted = super().format_entry(label, entry, bib_data)
        if note:
            entry.fields["note"] = note
            text = Text.from_latex(note)
            formatted.text = Text(formatted.text, " ", Tag("em", text, "."))
        return formatted


def setup(app):
    """Register with Sphinx."""
    register_plugin("pybtex.style.formatting", "ranklab", Style)
    app.connect("env-before-read-docs", _read_those_who_cite)
    app.connect("html-page-context", _correct_roles)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _read_those_who_cite(app, env, docnames):
    """Where the page of references is read again, its entries get other ids: link to them anew."""
    if "references" in docnames:
        citing = {ref.docname for ref in env.get_domain("cite").citation_refs}
        docnames.extend(sorted(citing & env.found_docs - set(docnames)))


def _correct_roles(app, pagename, templatename, context, doctree):
    """Docutils calls the entries a list, and none of them an item: worse than no role."""
    if "body" in context:
        context["body"] = context["body"].replace('<div role="list" class="', '<div class="')
