"""What all tests share: an environment of their own, and the ranks' places when time runs out."""

import os

import pytest
from places import ANSWER, places

os.environ.update(ANSWER)


@pytest.fixture(autouse=True, scope="session")
def private_folders(tmp_path_factory):
    """Nothing of the tests ends up in the home folder of whoever runs them."""
    os.environ["IPYTHONDIR"] = str(tmp_path_factory.mktemp("ipython"))
    os.environ["MPLCONFIGDIR"] = str(tmp_path_factory.mktemp("matplotlib"))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    if call.excinfo and "Timeout" in str(call.excinfo.value):
        outcome.get_result().sections.append(("where each rank was", places(os.getpid())))
