"""The sampler: what it reads of the CPU against the system's own counters, of a GPU against a
stand-in for NVML; that it ends, says what is wrong, and keeps what it measured."""

import _thread
import json
import math
import multiprocessing
import os
import threading
import time
from types import SimpleNamespace as Readings
from xml.etree import ElementTree

import numpy as np
import psutil
import pytest

from ranklab.gpu import Recording, load, recorded, sampled, save, utilization_plot


class NVML:
    """pynvml's functions as the sampler calls them, for two cards. Nothing of it is a GPU."""

    NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_NO_PERMISSION, NVML_ERROR_NOT_FOUND = 3, 4, 6
    NVML_ERROR_GPU_IS_LOST = 15
    NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2

    class NVMLError(Exception):
        def __init__(self, value):
            super().__init__({3: "Not Supported", 15: "GPU is lost", 12: "not there"}[value])
            self.value = value

    def __init__(self, refused=(), init_fails=None, lost_after=math.inf):
        self.refused, self.init_fails, self.lost_after = set(refused), init_fails, lost_after
        self.opened = self.asked = 0

    def __getattribute__(self, name):
        refused = name.startswith("nvmlDevice") and name in object.__getattribute__(self, "refused")
        if refused:
            return self._refuse
        return object.__getattribute__(self, name)

    def _refuse(self, *args):
        raise self.NVMLError(self.NVML_ERROR_NOT_SUPPORTED)

    def nvmlInit(self):
        if self.init_fails:
            raise self.NVMLError(self.init_fails)
        self.opened += 1

    def nvmlShutdown(self):
        self.opened -= 1

    def nvmlDeviceGetCount(self):
        return 2

    def nvmlDeviceGetHandleByIndex(self, index):
        if index > 1:
            raise self.NVMLError(12)
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid):
        return {"GPU-aa": 0, "GPU-bb": 1}[uuid]

    def nvmlDeviceGetName(self, handle):
        return [b"Card A", "Card B"][handle]  # older versions give bytes

    def nvmlSystemGetDriverVersion(self):
        return "1.2.3"

    def nvmlDeviceGetUtilizationRates(self, handle):
        self.asked += 1
        if self.asked > self.lost_after:
            raise self.NVMLError(self.NVML_ERROR_GPU_IS_LOST)
        return Readings(gpu=10 * handle + 40, memory=7)

    def nvmlDeviceGetMemoryInfo(self, handle):
        return Readings(used=5 << 30, total=8 << 30)

    def nvmlDeviceGetPowerUsage(self, handle):
        return 123_456

    def nvmlDeviceGetClockInfo(self, handle, which):
        return {1: 1500, 2: 800}[which]

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        return [Readings(pid=77, usedGpuMemory=1 << 30), Readings(pid=78, usedGpuMemory=None)]

    def nvmlDeviceGetProcessUtilization(self, handle, since):
        return [Readings(pid=77, smUtil=33, timeStamp=since + 1)]


def spin(cpu_seconds):
    end = time.process_time() + cpu_seconds
    while time.process_time() < end:
        pass


def in_a_child(cpu_seconds):
    child = multiprocessing.get_context("fork").Process(target=spin, args=(cpu_seconds,))
    child.start()
    child.join()


def cpu_seconds(recording, column):
    """The CPU seconds that a column of percents stands for."""
    return float(recording[column] @ np.diff(recording.time_s, prepend=0.0)) / 100


def used_by_this_process():
    times = psutil.Process().cpu_times()
    return times.user + times.system


def test_own_seconds_are_the_systems():
    before = used_by_this_process()
    with sampled(of="cpu", hz=20) as s:
        time.sleep(0.2)
        spin(0.4)
    used = used_by_this_process() - before
    assert cpu_seconds(s, "own_percent") == pytest.approx(used, abs=0.05)  # they tick by 0.01 s
    assert s.mean("own_percent") == pytest.approx(100 * used / s.time_s[-1], abs=10)
    assert s["own_percent"][0] < s["own_percent"].max()  # asleep, then busy


@pytest.mark.parametrize("hz", [20, 0.5])  # seen while it runs; over before the first sample
def test_seconds_of_children_are_counted_once(hz):
    with sampled(of="cpu", hz=hz) as s:
        in_a_child(0.3)
        in_a_child(0.1)
    # A fork costs something, too. Counted twice they would be 0.8.
    assert cpu_seconds(s, "children_percent") == pytest.approx(0.4, abs=0.2)


def test_children_are_found_where_no_list_of_them_is(monkeypatch):
    monkeypatch.setattr("ranklab.gpu.cpu.os.path.exists", lambda path: False)
    with sampled(of="cpu", hz=20) as s:
        in_a_child(1.0)  # long enough to be found: they are looked for about twice a second
    assert cpu_seconds(s, "children_percent") == pytest.approx(1.0, abs=0.25)


def a_child_and_then_a_rest(cpu_seconds):
    in_a_child(cpu_seconds)
    time.sleep(0.4)


@pytest.mark.parametrize("hz", [20, 0.5])
def test_seconds_of_grandchildren_are_counted_once(hz):
    fork = multiprocessing.get_context("fork")
    with sampled(of="cpu", hz=hz) as s:
        child = fork.Process(target=a_child_and_then_a_rest, args=(0.3,))
        child.start()
        child.join()
    assert cpu_seconds(s, "children_percent") == pytest.approx(0.3, abs=0.2)


def test_grandchildren_are_seen_while_they_run():
    fork = multiprocessing.get_context("fork")
    there = {each.pid for each in psutil.Process().children(recursive=True)}  # of other tests
    with sampled(of="cpu", hz=20) as s:
        child = fork.Process(target=in_a_child, args=(1.5,))
        child.start()
        child.join()
    assert max(len(each.keys() - there) for each in s.processes) == 3


def test_processes_stand_under_their_pids():
    with sampled(of="cpu", hz=20) as s:
        in_a_child(0.3)
    assert all(os.getpid() in each for each in s.processes)
    assert any(len(each) > 1 for each in s.processes)
    assert s.processes[0][os.getpid()]["memory_bytes"] > 1 << 20


def test_cores_are_an_array_of_samples_by_cores():
    with sampled(of="cpu", hz=20) as s:
        spin(0.2)
    assert s["cores_percent"].shape == (len(s), psutil.cpu_count())
    assert ((s["cores_percent"] >= 0) & (s["cores_percent"] <= 100)).all()
    assert s["utilization_percent"] == pytest.approx(s["cores_percent"].mean(axis=1))
    assert (s["memory_bytes"] > 0).all()


def test_times_rise_and_fill_the_block():
    began = time.perf_counter()
    with sampled(of="cpu", hz=50) as s:
        time.sleep(0.5)
    took = time.perf_counter() - began
    assert (np.diff(s.time_s, prepend=0.0) > 0).all()
    assert 0.48 < s.time_s[-1] <= took
    assert 0 < s.cost < 1 and s.gap_s >= 1 / 50


def test_a_block_shorter_than_a_sample_has_one():
    with sampled(of="cpu", hz=1) as s:
        pass
    assert len(s) == 1


def test_the_gpu_and_the_cpu_have_the_same_interface():
    with sampled(of="gpu", nvml=NVML(), hz=100) as gpu, sampled(of="cpu", hz=100) as cpu:
        time.sleep(0.1)
    for s in (gpu, cpu):
        assert {"utilization_percent", "memory_bytes"} <= set(s.columns)
        assert len(s.time_s) == len(s["utilization_percent"]) == len(s.processes) > 1
    assert cpu.about.keys() == gpu.about.keys()


def test_what_nvml_tells():
    nvml = NVML()
    with sampled(nvml=nvml, hz=100) as s:  # there is one, so it is taken
        time.sleep(0.1)
    assert s.about["card"] == "Card A" and s.about["driver"] == "1.2.3"
    assert set(s["utilization_percent"]) == {40} and set(s["power_w"]) == {123.456}
    assert set(s["sm_clock_mhz"]) == {1500} and set(s["memory_clock_mhz"]) == {800}
    assert s.processes[0] == {
        77: {"utilization_percent": 33, "memory_bytes": 1 << 30},
        78: {"utilization_percent": None, "memory_bytes": None},
    }
    assert nvml.opened == 0


def test_what_nvml_does_not_tell_is_not_a_number(tmp_path):
    silent = {"nvmlDeviceGetPowerUsage", "nvmlDeviceGetProcessUtilization"}
    with sampled(nvml=NVML(refused=silent), hz=100) as s:
        time.sleep(0.05)
    assert np.isnan(s["power_w"]).all() and math.isnan(s.mean("power_w"))
    assert s.processes[0][77] == {"utilization_percent": None, "memory_bytes": 1 << 30}
    save({"a": s}, tmp_path / "a.json")
    assert np.isnan(load(tmp_path / "a.json")["a"]["power_w"]).all()


@pytest.mark.parametrize(
    ("visible", "device", "card"),
    [("1", 0, "Card B"), ("1,0", 1, "Card A"), ("GPU-bb", 0, "Card B"), (None, 1, "Card B")],
)
def test_the_gpu_is_the_one_the_program_counts(monkeypatch, visible, device, card):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with sampled(nvml=NVML(), device=device) as s:
        pass
    assert s.about["card"] == card


@pytest.mark.parametrize("visible", [None, "0", ""])
def test_no_such_gpu(monkeypatch, visible):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    nvml = NVML()
    wrong = pytest.raises(RuntimeError, match="no GPU 5 here: NVML counts 2")
    with wrong, sampled(of="gpu", device=5, nvml=nvml):
        pass
    assert nvml.opened == 0


def test_no_driver():
    absent = NVML(init_fails=12)
    wrong = pytest.raises(RuntimeError, match=r"no NVIDIA driver here: not there.*of=\"cpu\"")
    with wrong, sampled(of="gpu", nvml=absent):
        pass
    with sampled(nvml=absent) as s:  # not asked for by name: the CPU
        pass
    assert s.about["card"].startswith("CPU")


def test_a_card_that_gets_lost_is_an_error_at_the_end_of_the_block():
    nvml, over = NVML(lost_after=2), False
    wrong = pytest.raises(RuntimeError, match="Card A stopped after 2 samples: GPU is lost")
    with wrong, sampled(nvml=nvml, hz=100) as s:
        time.sleep(0.2)
        over = True
    assert over and len(s) == 2 and nvml.opened == 0


def test_an_error_in_the_block_passes_and_ends_the_sampling():
    with pytest.raises(ZeroDivisionError), sampled(of="cpu"):
        1 / 0  # noqa: B018
    assert "ranklab-sampler" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.parametrize("wrong", [{"hz": 0}, {"hz": -1}, {"hz": float("nan")}, {"of": "tpu"}])
def test_arguments_that_cannot_be(wrong):
    with pytest.raises(ValueError, match="sampled: "), sampled(**wrong):
        pass


def test_a_column_that_is_not_there_names_those_that_are():
    with sampled(of="cpu") as s:
        pass
    with pytest.raises(KeyError, match="own_percent"):
        s["power"]


def test_a_recording_comes_back_from_its_file(tmp_path):
    with sampled(of="cpu", hz=50) as s:
        time.sleep(0.1)
    path = tmp_path / "x.json"
    save({"a": s, "b": s}, path)
    again = load(path)
    assert list(again) == ["a", "b"] and again["b"].about == s.about
    assert again["a"].columns == s.columns and again["a"].cost == s.cost
    for column in s.columns:
        assert np.array_equal(again["a"][column], s[column])
    assert np.array_equal(again["a"].time_s, s.time_s) and again["a"].processes == s.processes
    beside = json.loads(path.read_text())
    assert {"card", "driver", "torch", "cuda", "python", "date", "command", "data"} == set(beside)


def test_recordings_of_two_cards_do_not_go_into_one_file(tmp_path):
    with sampled(nvml=NVML(), device=0) as a, sampled(nvml=NVML(), device=1) as b:
        pass
    for wrong in ({"a": a, "b": b}, {}):
        with pytest.raises(ValueError, match="one card"):
            save(wrong, tmp_path / "x.json")


def test_recordings_of_the_book_are_found_from_below(tmp_path, monkeypatch):
    assert recorded("00_none-of-this-name") == {}
    with sampled(of="cpu") as s:
        pass
    below = tmp_path / "images" / "recorded"
    below.mkdir(parents=True)
    save({"a": s}, below / "00_x.json")
    (tmp_path / "_build" / "run").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "_build" / "run")
    assert list(recorded("00_x")) == ["a"]
    monkeypatch.chdir("/")
    assert recorded("00_x") == {}
    monkeypatch.setattr("sys.argv", [str(tmp_path / "scripts" / "00_x.py")])
    assert list(recorded("00_x")) == ["a"]


def test_the_stop_button_ends_sampling_that_is_about_to_begin(monkeypatch):
    began = threading.Event()

    def begin(meter):
        began.set()
        _thread.interrupt_main()  # while the block waits for the first values
        time.sleep(0.3)

    monkeypatch.setattr("ranklab.gpu.cpu.Cpu.begin", begin)
    monkeypatch.setattr("ranklab.gpu.cpu.Cpu.read", lambda meter: ({}, {}))
    with pytest.raises(KeyboardInterrupt), sampled(of="cpu", hz=100):
        pytest.fail("the block began all the same")
    assert began.is_set()
    left = [thread for thread in threading.enumerate() if thread.name == "ranklab-sampler"]
    for thread in left:
        thread.join(2)
    assert not any(thread.is_alive() for thread in left)


def made_up(readings):
    """A recording for the tests of the figure alone."""
    recording = Recording({"card": "of this test"})
    for i, reading in enumerate(readings):
        recording.add((i + 1) / 10, {"utilization_percent": reading, "memory_bytes": 1}, {})
    return recording


def test_the_mean_is_over_time():
    recording = Recording({"card": "of this test"})
    recording.add(1.0, {"utilization_percent": 100}, {})
    recording.add(5.0, {"utilization_percent": 0}, {})
    recording.add(6.0, {"utilization_percent": None}, {})
    assert recording.mean() == 20


def test_the_figure_says_in_words_what_is_to_be_seen():
    plot = utilization_plot({"spiky": made_up([0, 100] * 10), "smooth": made_up([90] * 20)}, "u")
    picture = ElementTree.fromstring(plot.svg)
    alt = picture.attrib["aria-label"]
    assert picture.attrib["role"] == "img" and plot.name == "u"
    assert "spiky: 50 % on average" in alt and "smooth: 90 % on average" in alt
    assert "between 0 and 100 %" in alt and "between 90 and 90 %" in alt
