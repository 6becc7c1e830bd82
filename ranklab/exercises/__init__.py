"""Exercises that check themselves: the reader's answer runs on real ranks, against many cases.

    from ranklab.exercises import check

    check("own_broadcast", own_broadcast)

What is checked stands in `ranklab/checks/`, a file an exercise, written with `Exercise`, `Case`,
`Mistake` and `Choice` (model.py). An answer passes through three kinds of process:

    the kernel            checking, attempted (a stub?), parcel (packs it), checker_process, report,
                          marks (how many are done)
    the checking process  checker_main, trial (all cases), running (one), judging, compare;
                          recognize (which mistake is it?), solution (mistakes as its edits)
    each rank             on_rank; compare there, too, for arguments that were changed

model.py and shown.py (values in short form) are used in all of them.
"""

from IPython import get_ipython

from ranklab import forgotten
from ranklab.exercises.checking import check
from ranklab.exercises.model import Case, Choice, Exercise, Mistake, Seen
from ranklab.exercises.shown import Raised

forgotten.explain_in(get_ipython())  # a check above its stub

__all__ = ["Case", "Choice", "Exercise", "Mistake", "Raised", "Seen", "check"]
