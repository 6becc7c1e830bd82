"""A figure to play with in the JupyterLab that is pinned, offline: at night."""

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.request

import nbformat
import pytest
from browsing import browser, visits
from built_site import site

from ranklab.playable import line_chart, playable

pytestmark = pytest.mark.everything
__all__ = ["browser", "site", "visits"]


@pytest.fixture
def lab(tmp_path):
    """The address of a JupyterLab with one notebook, which has run."""
    figure = playable(
        lambda a, b: (f"a is {a}, b is {b}", [{"x": x, "y": a * x} for x in range(4)]),
        line_chart("x", "y"),
        "lines",
        "A line.",
        a=[1, 2, 3],
        b=["one", "two"],
    )
    data = figure._repr_mimebundle_()
    cell = nbformat.v4.new_code_cell("figure", execution_count=1)
    cell.outputs = [nbformat.v4.new_output("execute_result", data, execution_count=1)]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3 (ipykernel)"}}
    notebook = nbformat.v4.new_notebook(cells=[cell], metadata=kernel)  # else it asks for one
    nbformat.write(notebook, tmp_path / "one.ipynb")
    command = [sys.executable, "-m", "jupyter", "lab", "--no-browser", "--allow-root"]
    command += [
        "--ServerApp.port=0",
        "--IdentityProvider.token=",
        f"--ServerApp.root_dir={tmp_path}",
    ]
    environment = {**os.environ, "JUPYTER_RUNTIME_DIR": str(tmp_path / "runtime")}
    environment["JUPYTER_CONFIG_DIR"] = str(tmp_path / "config")
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, cwd=tmp_path)
    try:
        yield _address(tmp_path / "runtime", process)
    finally:
        process.terminate()
        process.wait(30)


def _address(folder, process, limit=90):
    until = time.monotonic() + limit
    while time.monotonic() < until and process.poll() is None:
        for file in folder.glob("jpserver-*.json"):
            with contextlib.suppress(OSError, ValueError):
                url = json.loads(file.read_text())["url"].replace("localhost", "127.0.0.1")
                urllib.request.urlopen(f"{url}api/status", timeout=5).close()
                return url
        time.sleep(0.2)
    raise AssertionError("JupyterLab has not started")


def test_a_figure_is_played_with_in_jupyterlab_offline(lab, visits):
    page = visits.context.new_page()  # whatever is asked for elsewhere is refused, and noted
    page.goto(f"{lab}lab/tree/one.ipynb")
    slider, menu = page.locator(".vega-bind input").first, page.locator(".vega-bind select").first
    slider.wait_for(timeout=90_000)
    drawn = page.locator(".vega-embed canvas").first
    # JupyterLab keeps the arrow keys for its cells.
    for control, key, value in ((slider, "PageUp", "2"), (menu, "PageDown", "two")):
        before = drawn.screenshot()
        control.focus()
        page.keyboard.press(key)
        assert control.evaluate("c => c.value") == value
        until = time.monotonic() + 20
        while drawn.screenshot() == before and time.monotonic() < until:
            time.sleep(0.2)
        assert drawn.screenshot() != before
    foreign = [said for said in visits.complaints if said.startswith("asked for")]
    assert not [said for said in foreign if "vega" in said or "cdn" in said], foreign
    visits.complaints.clear()  # JupyterLab's own news and extensions are not ours
