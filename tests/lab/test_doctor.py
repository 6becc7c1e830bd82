"""What the places of all ranks say, taken together: on places that are made up."""

import dataclasses
import signal

import pytest
from reports import call, collective, concluded, ended, receives, runs, sends

from ranklab.doctor import mismatch, places, sentences
from ranklab.doctor.diagnosis import Diagnosis
from ranklab.doctor.mismatch import Called
from ranklab.doctor.one_rank import Death, Report
from ranklab.doctor.places import LastCell
from ranklab.doctor.sentences import wait
from ranklab.start.exits import Exit


def entry(number=1, name="all_reduce", sizes=((4,),), dtypes=("Float",), group="0", **more):
    sizes, dtypes = [list(size) for size in sizes], list(dtypes)
    known = {"group": group, "number": number, "name": name, "sizes": sizes, "dtypes": dtypes}
    return known | {"over": False} | more


def called(*entries):
    """Return a report for each rank, with the one collective that it called last."""
    return [Report(rank, "running", recent=(each,)) for rank, each in enumerate(entries)]


def mismatches_of(reports):
    return [sentences.difference(one) for one in mismatch.found(reports)]


# Circles


def test_ranks_that_take_turns_are_no_circle_and_wait_in_vain_for_nobody():
    turns = Diagnosis([receives(0, 1, seconds=0.01), receives(1, 0, seconds=0.3), ended(2)])
    assert turns.conclusions() == []
    assert not turns.stuck
    assert concluded(receives(0, 1, seconds=0.01), ended(1)) == []
    crossed = sends(0, 1, seconds=0.01, tag=1), receives(1, 0, seconds=0.01, tag=2)
    assert concluded(*crossed) == []


def test_two_that_receive_from_each_other_are_a_circle():
    diagnosis = Diagnosis([receives(0, 1), receives(1, 0, line=5), ended(2)])
    assert diagnosis.circle == [0, 1]
    assert diagnosis.stuck
    assert diagnosis.conclusions() == [
        "Ranks 0 and 1 wait in a circle: rank 0 waits to receive float32[4] from rank 1 (line 2), "
        "rank 1 waits to receive float32[4] from rank 0 (line 5): nobody sends."
    ]


def test_a_circle_begins_with_its_smallest_rank_whoever_leads_into_it():
    diagnosis = Diagnosis([receives(0, 3), receives(1, 2), receives(2, 3), receives(3, 1)])
    assert diagnosis.circle == [1, 2, 3]


def test_a_circle_through_lines_that_are_not_the_readers_leaves_their_place_out():
    hidden = dataclasses.replace(receives(1, 0), line="")
    (said,) = concluded(receives(0, 1), hidden)
    assert "from rank 1 (line 2), rank 1 waits to receive float32[4] from rank 0:" in said


def test_a_circle_of_sends_and_receives_says_neither_nobody_sends_nor_nobody_receives():
    (said,) = concluded(sends(0, 1), receives(1, 2), sends(2, 0))
    assert said.startswith("Ranks 0, 1 and 2 wait in a circle: ")
    assert "nobody" not in said


def test_a_circle_through_a_barrier():
    diagnosis = Diagnosis([collective(0, "barrier"), receives(1, 0), collective(2, "barrier")])
    assert diagnosis.circle == [0, 1]
    assert "rank 0 waits in barrier of float32[4] for rank 1" in diagnosis.conclusions()[0]


def test_a_circle_of_one_who_receives_from_itself():
    assert Diagnosis([receives(0, 0), ended(1)]).circle == [0]


def test_a_message_on_its_way_is_no_circle():
    diagnosis = Diagnosis([sends(0, 1), receives(1, 0), ended(2)])
    assert diagnosis.circle == []
    assert diagnosis.conclusions() == []


@pytest.mark.parametrize(("what", "values"), [("tag", (1, 2)), ("group", ("0", "1"))])
def test_a_message_under_another_tag_or_group_is_another_message(what, values):
    diagnosis = Diagnosis(
        [sends(0, 1, **{what: values[0]}), receives(1, 0, line=4, **{what: values[1]})]
    )
    assert diagnosis.conclusions() == [
        f"Rank 0 sends to rank 1 with {what} {values[0]} (line 2), and rank 1 receives from rank 0 "
        f"with {what} {values[1]} (line 4): that is another message."
    ]


def test_who_receives_from_anyone_waits_for_all():
    alone = Diagnosis([receives(0, None), ended(1), ended(2)])
    assert alone.waits_in_vain() == {0: [1, 2]}
    assert Diagnosis([receives(0, None), ended(1), runs(2)]).waits_in_vain() == {}
    assert Diagnosis([receives(0, None), receives(1, 0), runs(2)]).circle == []
    assert Diagnosis([receives(0, None), receives(1, 0), ended(2)]).circle == [0, 1]


# Waits for ranks that have ended


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ("finished", "has finished the cell"),
        ("failed", "has failed"),
        ("died", "has died"),
        ("idle", "runs nothing"),
    ],
)
def test_nothing_comes_from_a_rank_that_has_ended(state, says):
    diagnosis = Diagnosis([receives(0, 1), ended(1, state), runs(2)])
    assert diagnosis.waits_in_vain() == {0: [1]}
    assert diagnosis.stuck
    assert diagnosis.conclusions() == [
        f"Rank 0 waits to receive float32[4] from rank 1, but rank 1 {says}: "
        "nothing more comes from there."
    ]


def test_several_that_wait_for_the_same_are_one_sentence():
    (said,) = concluded(collective(0, "all_reduce"), ended(1), collective(2, "all_reduce"))
    assert said.startswith("Ranks 0 and 2 wait in all_reduce of float32[4], but rank 1 has")


def test_who_is_in_the_same_collective_waits_for_nobody_there():
    diagnosis = Diagnosis([collective(rank, "all_reduce") for rank in range(3)])
    assert set(map(tuple, diagnosis.waits_for.values())) == {()}
    assert diagnosis.circle == []


def test_a_subgroup_does_not_wait_for_the_others():
    diagnosis = Diagnosis(
        [collective(0, "barrier", ranks=(0, 1)), collective(1, "barrier", ranks=(0, 1)), ended(2)]
    )
    assert diagnosis.waits_in_vain() == {}


# Is it stuck?


def test_who_has_not_waited_for_long_is_not_stuck():
    assert not Diagnosis([receives(0, 1, seconds=0.1), receives(1, 0, seconds=0.1)]).stuck


def test_who_waits_for_one_that_runs_is_not_stuck():
    assert not Diagnosis([receives(0, 1), runs(1, seconds=9), ended(2)]).stuck


def test_all_that_are_left_wait():
    one_elsewhere = [collective(0, "all_reduce"), collective(1, "all_reduce"), receives(2, 0)]
    assert Diagnosis(one_elsewhere).stuck
    # All are in the same one: that may be large, and take its time.
    assert not Diagnosis([collective(rank, "all_reduce") for rank in range(3)]).stuck


def test_two_in_a_circle_are_stuck_while_another_one_runs():
    assert Diagnosis([receives(0, 1), receives(1, 0), runs(2)]).stuck
    assert not Diagnosis([receives(0, 1), receives(1, 0, seconds=0.1), runs(2)]).stuck


def test_nobody_waits():
    diagnosis = Diagnosis([ended(0), ended(1)])
    assert not diagnosis.stuck
    assert str(diagnosis) == "ranks 0 and 1 have finished the cell"


# In words


def test_those_at_the_same_place_are_told_together_with_the_longest_time():
    said = str(Diagnosis([collective(0, "barrier", payload=""), ended(1), runs(2, seconds=1.25)]))
    assert said.split("\n\n")[1:4] == [
        "rank 0 waits in barrier, for 9.0 s\n    line 2: source",
        "rank 1 has finished the cell",
        "rank 2 runs, for 1.2 s\n    line 7: x @ x",
    ]
    both = [collective(0, "barrier", seconds=3), collective(1, "barrier", seconds=4)]
    assert str(Diagnosis(both)).startswith("ranks 0 and 1 wait in barrier of float32[4], for 4.0 s")


def test_of_a_silent_rank_it_is_said_why():
    report = Report(1, "silent", silence="stopped", pid=47)
    said = Diagnosis([receives(0, 1), report]).paragraphs()
    stopped = "its process is stopped (SIGSTOP); it goes on with kill -CONT 47"
    assert said[1] == f"rank 1 does not answer\n    {stopped}"


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (call("recv", "recv", 1), "waits to receive float32[4] from rank 1"),
        (call("recv", "recv", None), "waits to receive float32[4] from anyone"),
        (call("send", "send", 2, tag=7), "waits to send float32[4] to rank 2 with tag 7"),
        (call("irecv", "recv", 1, handle=True), "waits for its irecv of float32[4] from rank 1"),
        (call("isend", "send", 1, handle=True), "waits for its isend of float32[4] to rank 1"),
        (call("barrier", "collective", payload=""), "waits in barrier"),
        (call("new_group", "meeting", payload=""), "waits in new_group"),
        (call("all_reduce", "collective", op="MAX"), "waits in all_reduce of float32[4] (MAX)"),
        (
            call("reduce", "collective", op="MAX", root=0),
            "waits in reduce of float32[4] (MAX, root 0)",
        ),
    ],
)
def test_a_wait_in_words(made, says):
    assert wait(made) == says


def test_several_ranks_wait_for_their_calls():
    made = call("irecv", "recv", 1, handle=True)
    (said,) = Diagnosis([Report(r, "running", call=made) for r in (0, 2)]).paragraphs(seconds=False)
    assert said.startswith("ranks 0 and 2 wait for their irecv of float32[4] from rank 1")


def test_of_the_way_into_a_call_the_outermost_line_is_told_alone():
    way = [("step.py", 9, "step", "y = f(x)"), ("f.py", 3, "f", "dist.barrier()")]
    frames = [dict(zip(("file", "line", "in", "source"), frame)) for frame in way]
    assert places.outermost(frames, LastCell()) == "line 9 of step.py"
    assert places.outermost([], LastCell()) == ""
    said = "    line 9 of step.py, in step: y = f(x)\n    line 3 of f.py, in f: dist.barrier()"
    assert places.in_frames(frames, LastCell()) == said


# Mismatches


@pytest.mark.parametrize(
    ("one", "other", "says"),
    [
        (
            entry(),
            entry(sizes=((8,),)),
            "rank 0 calls all_reduce of float32[4], and rank 1 calls all_reduce of float32[8].",
        ),
        (entry(), entry(dtypes=("Double",)), "rank 1 calls all_reduce of float64[4]."),
        (entry(), entry(name="broadcast"), "rank 1 calls broadcast of float32[4]."),
        (entry(op="SUM"), entry(op="MAX"), "rank 1 calls all_reduce of float32[4] (MAX)."),
        (
            entry(name="broadcast", root=0),
            entry(name="broadcast", root=1),
            "rank 0 calls broadcast of float32[4] (root 0), and rank 1",
        ),
    ],
)
def test_collectives_that_do_not_match(one, other, says):
    (said,) = mismatches_of(called(one, other, one))
    assert said.startswith("The collectives do not match: as collective number 1 of the group, ")
    assert says in said
    assert said.endswith(sentences.RULE)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (entry(), entry()),
        (entry(sizes=((2, 2),)), entry(sizes=((4,),))),  # Gloo does not look at the shape
        (entry(name="scatter", sizes=((4,),)), entry(name="scatter", sizes=())),
        (entry(number=1), entry(number=2)),  # one may be ahead
        (entry(group="0"), entry(group="1", name="broadcast")),
    ],
)
def test_collectives_that_match(one, other):
    assert mismatches_of(called(one, other)) == []


def test_only_the_first_mismatch_of_a_group_is_told():
    first = Report(0, "running", recent=(entry(1), entry(2), entry(3)))
    second = Report(1, "running", recent=(entry(1), entry(2, "broadcast"), entry(3, "barrier")))
    (said,) = mismatches_of([first, second])
    assert "number 2" in said


def test_a_mismatch_says_more_than_the_waiting_for_it():
    one = Report(0, "running", "    line 2: a", call("all_reduce", "collective"), 9.0, (entry(),))
    two = Report(
        1, "running", "    line 3: b", call("barrier", "collective"), 9.0, (entry(name="barrier"),)
    )
    (said,) = concluded(one, two)
    assert said.startswith("The collectives do not match")


TORCH = (
    "Detected mismatch between collectives on ranks. Rank 1 is running collective: "
    "CollectiveFingerPrint(SequenceNumber=2, OpType=ALLREDUCE, TensorShape=[2000], "
    "TensorDtypes=Float, TensorDeviceTypes=TensorOptions(dtype=float (default))), but Rank 0 is "
    "running collective: CollectiveFingerPrint(SequenceNumber=2, OpType=ALLREDUCE, "
    "TensorShape=[1000]).Collectives differ in the following aspects: Tensor shapes"
)


def test_what_torchs_own_checks_say_is_one_sentence():
    assert mismatch.found_by_torch("Timed out waiting") is None
    called_here = mismatch.found_by_torch(TORCH)
    assert sentences.called(called_here) == "all_reduce of float32[2000]"
    calls = {0: Called("all_reduce", "float32[1000]"), 1: Called("barrier")}
    said = sentences.difference(mismatch.of_calls(calls))
    assert "rank 0 calls all_reduce of float32[1000], and rank 1 calls barrier." in said
    alone = sentences.difference(mismatch.of_calls({2: Called("barrier")}))
    assert "rank 2 calls barrier." in alone


# Deaths


def died(code, call=None, said="", lines=()):
    death = Death(Exit(code, said), lines)
    return sentences.death(Report(1, "died", call=call, death=death))


def test_why_a_process_was_aborted():
    gloo = "[enforce fail] op.preamble.length <= op.nbytes. 32 vs 16."
    box, reduced = call("recv", "recv", 0), call("all_reduce", "collective")
    assert died(-signal.SIGABRT, box, gloo) == (
        "its process was aborted (SIGABRT) in recv of float32[4]: "
        "Gloo got a message from rank 0 of 32 bytes, and 16 fit."
    )
    assert died(-signal.SIGABRT, reduced, gloo).endswith("Gloo got a message that does not fit.")
    assert died(-signal.SIGABRT, box) == (
        "its process was aborted (SIGABRT) in recv of float32[4]."
    )


def test_what_ended_a_process():
    assert died(-signal.SIGKILL, call("recv", "recv", 0)) == (
        "the process is gone (killed by SIGKILL)."
    )
    assert died(3, said="bad_alloc") == "the process is gone (exit code 3).\nbad_alloc"
    assert died(-signal.SIGSEGV, lines=("f (a.py, line 3)", "g (a.py, line 7)")).endswith(
        "Python was in f (a.py, line 3), called by g (a.py, line 7)."
    )
    assert sentences.death(Report(1, "died", death=Death())) == ""
