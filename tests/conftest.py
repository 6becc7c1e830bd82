"""What all tests share: an environment of their own, who runs which, where each rank was."""

import gc
import os
import sys

import pytest
from places import ANSWER, places

# What whoever runs the tests has set for themselves does not decide whether they pass.
FOREIGN = (
    "RANKLAB_RANKS",
    "RANKLAB_PRELOAD",
    "RANKLAB_CORES_ARE_SHARED",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "TORCH_DISTRIBUTED_DEBUG",
)
for name in FOREIGN:
    os.environ.pop(name, None)
os.environ.update(ANSWER)
# Where it is there, jsonschema (and so nbformat) compiles grammars of addresses with it when it is
# imported: 1.5 s of each tester, for a check that nobody asks for.
sys.modules.setdefault("rfc3987_syntax", None)
if "PYTEST_XDIST_WORKER" in os.environ:
    # Beside other testers, several threads would only wait for each other: a third more time.
    os.environ["OMP_NUM_THREADS"] = "1"
    # And what a chapter says of times is not checked: that is for `make book`, with nothing beside.
    os.environ["RANKLAB_CORES_ARE_SHARED"] = "1"


@pytest.hookimpl(hookwrapper=True)
def pytest_collection():
    """Next to nothing of what is imported for the tests is ever thrown away: do not look for it."""
    gc.disable()  # a third of the time
    yield
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items):
    """First the chapters, as the site waits for their pages; last the exercises, which are many.

    So no tester is left alone with a long file at the end.
    """
    turns = {"test_chapters.py": 0, "test_checks.py": 2}
    items.sort(key=lambda item: turns.get(item.path.name, 1))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Give each tester a file, a chapter with its script, or an exercise with its mistakes."""
    from xdist.scheduler import LoadFileScheduling

    class Parts(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file, _, test = nodeid.partition("::")
            if file.endswith(("test_chapters.py", "test_checks.py")):
                return test.partition("[")[2].strip("]").partition("-")[0]
            return file

    return Parts(config, log)


@pytest.fixture(scope="session")
def everybodys(tmp_path_factory):
    """A folder that all testers of this run have."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(autouse=True, scope="session")
def private_folders(tmp_path_factory, everybodys):
    """Nothing of the tests ends up in the home folder of whoever runs them."""
    os.environ["IPYTHONDIR"] = str(tmp_path_factory.mktemp("ipython"))
    # One for all testers: what matplotlib knows of the fonts takes it seconds to find out.
    os.environ["MPLCONFIGDIR"] = str(everybodys / "matplotlib")
    os.environ["RANKLAB_DATA"] = str(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def four():
    """Four ranks, for all tests of a file."""
    from on_ranks import started  # with torch: only where it is wanted

    with started() as ranks:
        yield ranks


# The process that imports, and the one that checks answers, are there for all files of a folder.
# Idle, they and their ranks cost a little all the time: they end with the last of these files.
SHARED = {"chapters": "on_ranks", "exercises": "ranklab.exercises.checker_process"}


def pytest_runtest_setup(item):
    for folder, module in SHARED.items():
        if item.path.parent.name != folder and module in sys.modules:
            sys.modules[module].end()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    # As pytest-timeout words it; browsers have timeouts of their own.
    if call.excinfo and str(call.excinfo.value).startswith(("Timeout (>", "Timeout >")):
        outcome.get_result().sections.append(("where each rank was", places(os.getpid())))
