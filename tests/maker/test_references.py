"""The page of references, and the links to it."""

import re
import subprocess
import sys

CONF = """
extensions = ["sphinxcontrib.bibtex", "bookmaker.site.references"]
bibtex_bibfiles = ["references.bib"]
bibtex_default_style = "ranklab"
"""
ENTRY = "@misc{{{0},\n  author = {{{0}, A.}},\n  title = {{{0}}},\n  year = {{2000}},\n}}\n"


def test_a_reference_that_goes_leaves_no_link_broken(tmp_path):
    """The page that cites has not changed, but what it links to has another id."""
    (tmp_path / "conf.py").write_text(CONF)
    toc = ".. toctree::\n\n   cites\n   references\n"
    (tmp_path / "index.rst").write_text(f"One\n===\n\n{toc}")
    (tmp_path / "cites.rst").write_text("Two\n===\n\nSee :cite:`Mmm`.\n")
    (tmp_path / "references.rst").write_text("Three\n=====\n\n.. bibliography::\n   :all:\n")
    for entries in (["Aaa", "Bbb", "Mmm"], ["Mmm"]):
        (tmp_path / "references.bib").write_text("".join(map(ENTRY.format, entries)))
        command = [sys.executable, "-m", "sphinx", "-q", "-W", tmp_path, tmp_path / "html"]
        subprocess.run(command, check=True, timeout=120)
        cites = (tmp_path / "html" / "cites.html").read_text()
        link = re.search(r'href="references.html#([^"]+)"', cites)[1]
        references = (tmp_path / "html" / "references.html").read_text()
        assert f'id="{link}"' in references
