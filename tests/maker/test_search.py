"""Terms of the field, as people write them, lead to their chapter within the first three hits."""

import subprocess
import sys

import pytest
from browsing import browser, visits
from built_site import CHAPTERS, site

from bookmaker import contents
from bookmaker.folders import HERE

pytestmark = pytest.mark.timeout(900)
__all__ = ["browser", "site", "visits"]

ASKED = {
    "allreduce": 8,
    "all-reduce": 8,
    "ring all-reduce": 8,
    "NCCL": 8,
    "FSDP": 19,
    "ZeRO": 19,
    "gradient accumulation": 11,
    "DDP": 11,
    "DistributedSampler": 11,
    "data parallel": 10,
    "pipeline parallelism": 17,
    "1F1B": 17,
    "bubble": 17,
    "tensor parallel": 18,
    "Megatron": 18,
    "deadlock": 6,
    "reduce-scatter": 7,
    "torchrun": 5,
    "roofline": 1,
    "GPU utilization": 4,
    "mpi4py": 9,
    "MoE": 21,
    "checkpoint": 25,
    "Slurm": 24,
    "all-reduce hangs": "stuck",
    "two hosts": "using",
    "which parallelism": "which",
}


def test_a_chapters_terms_are_its_own():
    of_all = [t.lower() for of_page in contents.terms(HERE).values() for t in of_page]
    assert len(of_all) == len(set(of_all))


def test_twenty_terms_lead_to_their_chapters(visits, site):
    """One that is not written leads to the start page, which says so."""
    names = {int(name[:2]): name for name in CHAPTERS}
    wrong = []
    page = visits.open((site / "search.html").as_uri())
    for term, place in ASKED.items():
        page.goto(f"{(site / 'search.html').as_uri()}?q={term.replace(' ', '+')}")
        page.locator("#search-results li a").first.wait_for(timeout=20_000)
        page.wait_for_function(
            "document.querySelectorAll('#search-results li').length >= 3 || "
            "/found/.test(document.querySelector('#search-results').innerText)"
        )
        hits = page.locator("#search-results li > a").evaluate_all(
            "links => links.slice(0, 3).map(a => a.getAttribute('href'))"
        )
        wanted = place if isinstance(place, str) else names.get(place, "intro")
        if not any(hit.partition(".html")[0].endswith(wanted) for hit in hits):
            wrong.append((term, wanted, hits))
    assert not wrong


def test_a_page_that_is_not_read_again_keeps_its_terms(tmp_path):
    (tmp_path / "conf.py").write_text('extensions = ["bookmaker.site.search"]')
    (tmp_path / "index.rst").write_text("One\n===\n\n.. toctree::\n\n   two\n")
    (tmp_path / "two.rst").write_text("Two\n===\n\n.. index:: ! FSDP\n\nText.\n")
    for changed in ("", "\nChanged.\n"):
        with open(tmp_path / "index.rst", "a") as file:
            file.write(changed)
        command = [sys.executable, "-m", "sphinx", "-q", "-W", tmp_path, tmp_path / "html"]
        subprocess.run(command, check=True, timeout=120)
        index = (tmp_path / "html" / "searchindex.js").read_text()
        assert '"indexentries": {"fsdp": [[1, "index-0", true]]}' in index
