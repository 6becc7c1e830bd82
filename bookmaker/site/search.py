"""The search's index (a Sphinx extension)."""

from bookmaker.upstream import index_entries


def setup(app):
    """Register with Sphinx."""
    app.connect("html-collect-pages", _keep_terms)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}


def _keep_terms(app):
    """Sphinx forgets under which terms a page is found, if it has not read it again this time."""
    in_search = index_entries(app.builder)
    for page, entries in app.env.get_domain("index").entries.items():
        in_search.setdefault(page, [(term, place, main) for _, term, place, main, _ in entries])
    return []
