"""What pages say of recordings: these are files, so it is asserted here and not in each run."""

import json
from pathlib import Path

import numpy as np
import pytest

from ranklab.gpu import load

ROOT = Path(__file__).parents[2]
GPUS = ["01_matmul-gpu", "04_feeding-gpu", "11_ddp-cards", "11_ddp-deterministic"]
GPUS += ["12_own_ddp-cards", "17_pipeline-cards"]


def recordings(name):
    return load(ROOT / "images" / "recorded" / f"{name}.json")


def phases(name):
    """Of rank 0: (name, seconds), in order."""
    return [(what, end - begin) for what, begin, end in recordings(name)["0"].phases]


@pytest.mark.parametrize("name", GPUS)
def test_a_recording_says_on_what_it_was_made(name):
    for recording in recordings(name).values():
        assert recording.about["card"].startswith("NVIDIA H")
        for key in ("uuid", "driver", "torch", "cuda", "python", "date", "command"):
            assert recording.about[key], key
        command = recording.about["command"].split()
        assert command[0] == "python" and not [w for w in command if w.startswith(("/", "~"))]


def test_01_tf32_is_seven_times_float32_and_bfloat16_twice_that():
    full, tf32, half = (r.about["gflop_per_s"] for r in recordings("01_matmul-gpu").values())
    assert 6.5 < tf32 / full < 7.5 and 1.9 < half / tf32 < 2.1


def test_04_long_teeth_show_and_fine_ones_are_an_even_fifth():
    starved, fed, fine = (r["utilization_percent"] for r in recordings("04_feeding-gpu").values())
    assert np.mean(starved == 0) > 0.5 > np.mean(fed == 0)
    assert all(15 < reading < 25 for reading in fine[2:])
    of_meter = [len(same) for same in np.split(fine, 1 + np.flatnonzero(np.diff(fine)))]
    assert set(of_meter) <= {2, 4}  # of ten readings a second, two or four alike: a fifth each


def test_09_with_a_core_for_each_rank_empty_messages_cost_little():
    recording = json.loads((ROOT / "images" / "recorded" / "09_mpi-cores.json").read_text())
    assert recording["data"]["gloo_ring"] < 0.5  # ms; 2 to 7 where four ranks share two cores
    page = (ROOT / "book" / "09_mpi.md").read_text()
    for name in ("ring", "lean", "measured", "more"):
        assert f"| {recording['data'][f'gloo_{name}']:.2f} ms |\n" in page


def test_11_deterministic_steps_take_an_eighth_longer_and_end_on_the_same_bits():
    usual, fixed, fastest = (r.about for r in recordings("11_ddp-deterministic").values())
    assert fixed["apart"] == 0 and 5e-5 < usual["apart"] < 5e-4
    assert 1.1 < fixed["step_ms"] / usual["step_ms"] < 1.15
    assert fixed["first_step_ms"] > 5 * usual["first_step_ms"]
    assert 1.015 < usual["step_ms"] / fastest["step_ms"] < 1.025


def test_11_two_threads_are_hardly_faster_and_two_processes_nearly_twice():
    (_, alone), (_, threads), (_, both) = phases("11_ddp-cards")
    assert 0.85 < threads / alone < 1 and 1.7 < alone / both < 2


def test_12_messages_during_backward_save_a_sixth():
    (_, after), (_, during) = phases("12_own_ddp-cards")
    assert 0.8 < during / after < 0.86
    one = recordings("12_own_ddp-cards")["0"]
    busy, split = one["utilization_percent"], one.phases[1][1]
    assert busy[(one.time_s > split)].mean() > busy[(one.time_s < split) & (one.time_s > 1)].mean()


def test_17_the_pair_takes_longest_on_one_card():
    took = dict(phases("17_pipeline-cards")[-3:])
    assert took["pair"] > 2 * max(took["one_8"], took["one_1"])
