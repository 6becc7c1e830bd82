"""What a NameError in the notebook most likely means: a forgotten `%%px`, or a cell not yet run."""

import re
import sys

from IPython import get_ipython

from ranklab.upstream import cpython

# What each rank has by itself, in every `%%px` cell.
OF_EACH_RANK = ("rank", "world_size", "device", "torch", "dist")
PATIENCE = 3  # seconds that a rank has to say whether it knows a name


def explain_in(shell):
    """Have a NameError of the notebook's say what to do, where we can tell."""
    if shell and not shell.custom_exceptions:  # else somebody has a handler, which stays
        shell.set_custom_exc((NameError,), _say)


def _say(shell, kind, error, trace, tb_offset=None):
    # Of a variable of some function's that is not set yet there is nothing to say.
    name = cpython.missing_name(f"{kind.__name__}: {error}")
    if hint := _hint(name, shell.user_ns.get("In", [""])[-1]):
        error.add_note(f"\n{hint}")
    shell.showtraceback((kind, error, trace), tb_offset=tb_offset)


def _hint(name, cell):
    """The sentence for the reader of a `cell` in which `name` was not defined; "" for none."""
    if not name:
        return ""
    if re.search(rf"\bcheck\(\s*['\"]\w+['\"],\s*{name}\b", cell):
        return f"The cell that defines `{name}`, above this one, has not been run. Run it first."
    if name in OF_EACH_RANK or _on_the_ranks(name):
        return (
            f"`{name}` lives on the ranks, and this cell ran in the notebook's own process. Should "
            "it begin with %%px? A value of the ranks comes here by "
            f'{_name_of_ranks()}["{name}"].'
        )
    return f"No cell that has run here defines `{name}`. Does one above this one?"


def _current():
    module = sys.modules.get("ranklab.ranks.current")
    return module and module.current()


def _name_of_ranks():
    return _current().name if _current() else "ranks"


def _on_the_ranks(name):
    ranks = _current()
    if ranks is None or not ranks.client or 0 not in ranks.client.ids:
        return False
    asked = ranks.client[0].apply_async(_knows, name)
    return asked.wait(PATIENCE) and asked.successful() and asked.get()


def _knows(name):
    return name in get_ipython().user_ns
