"""The sampler: what it reads of the CPU against the system's own counters, of a GPU against a
stand-in for NVML; that it ends, says what is wrong, and keeps what it measured."""

import _thread
import contextlib
import json
import math
import multiprocessing
import platform
import re
import signal
import sys
import threading
import time
from types import SimpleNamespace as Readings
from xml.etree import ElementTree

import numpy as np
import psutil
import pytest

from ranklab.gpu import Recording, load, recorded, sampled, save, utilization_plot
from ranklab.gpu.plot import _cards
from ranklab.plots import RANK_COLORS


class NVML:
    """pynvml's functions as the sampler calls them, for two cards. Nothing of it is a GPU.

    answers: what a function of this name gives instead: an error's number, or a function.
    """

    NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2
    cards = (("GPU-aa-1", b"Card A"), ("GPU-bb-2", "Card B"))  # older versions give bytes

    class NVMLError(Exception):
        def __init__(self, value):
            super().__init__(
                {2: "Invalid", 3: "Not Supported", 15: "GPU is lost", 9: "none"}[value]
            )

    def __init__(self, **answers):
        self.answers, self.opened = answers, 0

    def __getattribute__(self, name):
        answer = object.__getattribute__(self, "__dict__").get("answers", {}).get(name)
        if isinstance(answer, int):
            return lambda *args: self.refuse(answer)
        return answer or object.__getattribute__(self, name)

    def refuse(self, value):
        raise self.NVMLError(value)

    def nvmlInit(self):
        self.opened += 1

    def nvmlShutdown(self):
        self.opened -= 1

    def nvmlDeviceGetCount(self):
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index):
        return index if index in (0, 1) else self.refuse(2)

    def nvmlDeviceGetHandleByUUID(self, uuid):
        return 7 if uuid.startswith("MIG-") else self.refuse(2)

    def nvmlDeviceGetUUID(self, handle):
        return "MIG-cc-3" if handle == 7 else self.cards[handle][0]

    def nvmlDeviceGetName(self, handle):
        return "Card A MIG 1g" if handle == 7 else self.cards[handle][1]

    def nvmlSystemGetDriverVersion(self):
        return "1.2.3"

    def nvmlDeviceGetUtilizationRates(self, handle):
        return Readings(gpu=10 * handle + 40, memory=7) if handle < 7 else self.refuse(3)

    def nvmlDeviceGetMemoryInfo(self, handle):
        return Readings(used=5 << 30, total=8 << 30)

    def nvmlDeviceGetPowerUsage(self, handle):
        return 123_456

    def nvmlDeviceGetClockInfo(self, handle, which):
        return {1: 1500, 2: 800}[which]


@pytest.fixture(autouse=True)
def both_count_alike(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # another test may have loaded it
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")


def torch_that_counts(monkeypatch, *uuids, current=0):
    """Put in torch's place one that finds these GPUs, in this order."""
    cuda = Readings(
        is_available=lambda: True,
        device_count=lambda: len(uuids),
        current_device=lambda: current,
        get_device_properties=lambda i: Readings(uuid=uuids[i]),
    )
    fake = Readings(cuda=cuda, __version__="2", version=Readings(cuda="13"))
    monkeypatch.setitem(sys.modules, "torch", fake)


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
    with sampled(of="cpu", hz=20) as s:
        child = fork.Process(target=in_a_child, args=(1.5,))
        child.start()
        child.join()
    early = s["children_percent"][s.time_s < s.time_s[-1] - 0.3]  # at its end all would be seen
    assert early.max() > 10


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
        assert len(s.time_s) == len(s["utilization_percent"]) > 1 and s.notes == []
    assert cpu.about.keys() == gpu.about.keys()


def test_what_nvml_tells():
    nvml, before = NVML(), time.time()
    with sampled(nvml=nvml, hz=100) as s:  # there is one, so it is taken
        time.sleep(0.05)
    told = {"card": "Card A", "driver": "1.2.3", "uuid": "GPU-aa-1", "device": 0, "rank": None}
    assert told.items() <= s.about.items() and s.about["host"] == platform.node()
    assert set(s["utilization_percent"]) == {40} and set(s["power_w"]) == {123.456}
    assert set(s["sm_clock_mhz"]) == {1500} and set(s["memory_clock_mhz"]) == {800}
    assert before < s.began < s.began + s.time_s[-1] < time.time()
    assert nvml.opened == 0


def test_all_cards_are_read_by_one_thread_in_one_pass():
    nvml, threads = NVML(), set()
    nvml.answers["nvmlDeviceGetPowerUsage"] = lambda card: threads.add(threading.get_ident()) or 1
    with sampled(device="all", nvml=nvml, hz=100) as cards:
        time.sleep(0.05)
        with cards[0].phase("asleep"):
            time.sleep(0.05)
    assert [s.about["card"] for s in cards] == ["Card A", "Card B"] and nvml.opened == 0
    assert [set(s["utilization_percent"]) for s in cards] == [{40}, {50}]
    assert len(threads) == 1 and len(cards[0]) == len(cards[1]) > 1
    assert cards[0].time_s == pytest.approx(cards[1].time_s, abs=0.02)
    assert cards[1].phases == cards[0].phases


def test_of_all_cards_the_one_that_is_broken_is_left_out():
    broken = {"nvmlDeviceGetHandleByIndex": lambda i: NVML().refuse(15) if i else i}
    with sampled(device="all", nvml=NVML(**broken)) as cards:
        pass
    assert [s.about["card"] for s in cards] == ["Card A"]
    assert cards[0].notes == ["The host's card 1, by bus, does not answer: GPU is lost."]


@pytest.mark.parametrize(
    ("visible", "device", "card"),
    [
        ("1", 0, "Card B"),
        ("1,0", 1, "Card A"),
        ("GPU-bb-2", 0, "Card B"),
        ("GPU-b", "cuda", "Card B"),  # it may be abbreviated
        ("MIG-cc-3", None, "Card A MIG 1g"),
        (None, "cuda:1", "Card B"),
    ],
)
def test_the_gpu_is_the_one_the_program_counts(monkeypatch, visible, device, card):
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with sampled(nvml=NVML(), device=device) as s:
        pass
    assert s.about["card"] == card
    unknown = ["The driver did not tell utilization (Not Supported)."]
    assert s.notes == (unknown if "MIG" in card else [])


def test_cuda_counts_by_speed_and_nvml_by_bus(monkeypatch):
    monkeypatch.delenv("CUDA_DEVICE_ORDER")
    torch_that_counts(monkeypatch, "bb-2", "aa-1", "cc-3", current=1)
    for device, card in [(0, "Card B"), (None, "Card A"), (2, "Card A MIG 1g")]:
        with sampled(nvml=NVML(), device=device) as s:
            pass
        assert s.about["card"] == card and not any("certain" in note for note in s.notes)
    monkeypatch.setitem(sys.modules, "torch", None)
    with sampled(nvml=NVML()) as s:
        pass
    assert "not certain: CUDA counts the fastest first" in s.notes[0]


@pytest.mark.parametrize("visible", [None, "0", ""])
def test_no_such_gpu(monkeypatch, visible):
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    nvml = NVML()
    wrong = pytest.raises(RuntimeError, match=r"no GPU 5 here: this program sees [012] ")
    with wrong, sampled(of="gpu", device=5, nvml=nvml):
        pass
    assert nvml.opened == 0


def test_no_driver_and_none_visible(monkeypatch):
    absent = NVML(nvmlInit=9)
    wrong = pytest.raises(RuntimeError, match=r"no NVIDIA driver here: none.*of=\"cpu\"")
    with wrong, sampled(of="gpu", nvml=absent):
        pass
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    for nvml in (absent, NVML()):  # not asked for by name: the CPU, which surprises nobody
        with sampled(nvml=nvml, device="all") as (s,):
            pass
        assert s.about["card"].startswith("CPU") and s.notes == []
    torch_that_counts(monkeypatch, "aa-1")
    with sampled(nvml=absent) as s:  # but here it does
        pass
    assert s.about["card"].startswith("CPU") and "no NVIDIA driver here" in s.notes[0]


def test_without_pynvml_it_is_the_cpu_and_a_note_says_why(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with sampled() as s:
        pass
    assert s.about["card"].startswith("CPU") and "pip install nvidia-ml-py" in s.notes[0]
    assert "pip install nvidia-ml-py" in svg_text(utilization_plot({"x": s}))
    with pytest.raises(RuntimeError, match="pip install nvidia-ml-py"), sampled(of="gpu"):
        pass


def test_what_the_driver_does_not_tell_is_not_a_number_and_one_sentence(tmp_path):
    silent = {"nvmlDeviceGetUtilizationRates": 3, "nvmlDeviceGetClockInfo": 3}
    strange = {"nvmlDeviceGetMemoryInfo": lambda card: Readings(used="?")}
    with sampled(nvml=NVML(**silent, **strange), hz=100) as s:
        time.sleep(0.05)
    save({"a": s}, tmp_path / "a.json")
    for it in (s, load(tmp_path / "a.json")["a"]):
        assert np.isnan(it["utilization_percent"]).all() and math.isnan(it.mean())
        assert np.isnan(it["memory_bytes"]).all() and set(it["power_w"]) == {123.456}
        assert it.notes == [
            "The driver did not tell utilization, sm clock, memory clock (Not Supported).",
            "The driver did not tell memory (ValueError: could not convert string to float: '?').",
        ]
        plot = utilization_plot({"training": it, "other": made_up([50, 50])})
        assert "training: utilization is not known" in svg_text(plot)
        assert "The driver did not tell utilization" in svg_text(plot)
        assert "training: utilization is not known. other: 50 %" in alt(plot)


def test_a_card_that_is_lost_for_a_moment_goes_on():
    answers = iter([40, 40, None, 40, *[70] * 1000])
    nvml = NVML()

    def rates(card):
        gpu = next(answers)
        return nvml.refuse(15) if gpu is None else Readings(gpu=gpu)

    nvml.answers["nvmlDeviceGetUtilizationRates"] = rates
    with sampled(nvml=nvml, hz=100) as s:
        time.sleep(0.15)
    assert np.flatnonzero(np.isnan(s["utilization_percent"])).tolist() == [2]
    assert set(s["power_w"]) == {123.456} and s["utilization_percent"][-1] == 70
    assert s.notes == [
        f"The driver did not tell utilization in 1 of {len(s)} samples (GPU is lost)."
    ]
    assert nvml.opened == 0


def test_what_goes_wrong_in_the_thread_is_an_error_at_the_end_of_the_block(monkeypatch):
    monkeypatch.setattr("ranklab.gpu.cpu.Cpu.read", lambda meter: 1 / 0)
    over = False
    with pytest.raises(RuntimeError, match="stopped after 0 samples: division"), sampled(of="cpu"):
        over = True
    assert over


def test_an_error_in_the_block_passes_and_ends_the_sampling():
    with pytest.raises(ZeroDivisionError), sampled(of="cpu"):
        1 / 0  # noqa: B018
    assert "ranklab-sampler" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.parametrize(
    "wrong", [{"hz": 0}, {"hz": -1}, {"hz": float("nan")}, {"of": "tpu"}, {"device": "al"}]
)
def test_arguments_that_cannot_be(wrong):
    with pytest.raises(ValueError, match="sampled: "), sampled(**wrong):
        pass


def test_a_column_that_is_not_there_names_those_that_are():
    with sampled(of="cpu") as s:
        pass
    with pytest.raises(KeyError, match="own_percent"):
        s["power"]


def test_recordings_come_back_from_their_file(tmp_path):
    with sampled(of="cpu", hz=50) as s, s.phase("asleep"):
        time.sleep(0.1)
    with sampled(nvml=NVML(), device=1) as card:
        pass
    path = tmp_path / "x.json"
    save({"a": s, "b": card}, path)
    again = load(path)
    assert list(again) == ["a", "b"]
    for one, other in zip((s, card), again.values()):
        assert (other.about, other.cost, other.began) == (one.about, one.cost, one.began)
        assert other.columns == one.columns and other.phases == one.phases
        assert np.array_equal(other.time_s, one.time_s) and other.notes == one.notes
        for column in one.columns:
            assert np.array_equal(other[column], one[column])
    beside = json.loads(path.read_text())
    assert {"host", "torch", "cuda", "python", "date", "command", "data"} < set(beside)
    with pytest.raises(ValueError, match="no recording"):
        save({}, path)


def test_a_file_of_an_earlier_version_is_read(tmp_path):
    columns = {"time_s": [0.1, 0.2], "utilization_percent": [40, None], "cost": 0.01}
    old = {"card": "Card A", "data": {"a": columns | {"processes": [{"77": {}}, {}]}}}
    (tmp_path / "x.json").write_text(json.dumps(old))
    s = load(tmp_path / "x.json")["a"]
    assert s.mean() == 40 and s.about == {"card": "Card A"} and s.cost == 0.01
    assert s.phases == s.notes == [] and math.isnan(s.began)
    assert "a: 40 %" in alt(utilization_plot({"a": s})) and "CPU: 40 %" in alt(
        utilization_plot([s])
    )


def test_recordings_of_the_book_are_found_from_below(tmp_path, monkeypatch):
    assert recorded("00_none-of-this-name") == {}
    with sampled(of="cpu") as s:
        pass
    below = tmp_path / "images" / "recorded"
    below.mkdir(parents=True)
    save({"a": s}, below / "00_x.json")
    (tmp_path / "_build" / "run").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "_build" / "run")
    (found,) = recorded("00_x").values()
    assert found.notes[-1].startswith(f"Recorded on {s.about['card']}: driver {s.about['driver']},")
    monkeypatch.chdir("/")
    assert recorded("00_x") == {}
    monkeypatch.setattr("sys.argv", [str(tmp_path / "scripts" / "00_x.py")])
    assert list(recorded("00_x")) == ["a"]


def test_what_is_recorded_on_cards_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with sampled(of="gpu", nvml=NVML(), hz=100) as card, sampled(of="cpu", hz=100) as cpu:
        time.sleep(0.05)
    assert recorded("00_cpu", [cpu]) == recorded("00_cards", [[card], cpu]) == {}
    assert recorded("00_panels", {"fed": card}) == {}
    assert {path.stem: list(load(path)) for path in tmp_path.iterdir()} == {
        "00_cards": ["0"],
        "00_panels": ["fed"],
    }


@pytest.fixture
def stop_button():
    """In the background of a shell SIGINT is ignored; what a kernel does with it is done here."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield _thread.interrupt_main
    signal.signal(signal.SIGINT, before)


def test_the_stop_button_ends_sampling_that_is_about_to_begin(monkeypatch, stop_button):
    began = threading.Event()

    def begin(meter):
        began.set()
        stop_button()  # while the block waits for the first values

    monkeypatch.setattr("ranklab.gpu.cpu.Cpu.begin", begin)
    monkeypatch.setattr("ranklab.gpu.cpu.Cpu.read", lambda meter: ({}, {}))
    with pytest.raises(KeyboardInterrupt), sampled(of="cpu", hz=100):
        pytest.fail("the block began all the same")
    assert began.is_set()
    left = [thread for thread in threading.enumerate() if thread.name == "ranklab-sampler"]
    for thread in left:
        thread.join(60)
    assert not any(thread.is_alive() for thread in left)


def made_up(readings, began=math.nan, **about):
    """A recording for the tests of the figure alone."""
    recording = Recording({"card": "of this test"} | about)
    recording.began = began
    for i, reading in enumerate(readings):
        recording.add((i + 1) / 10, {"utilization_percent": reading}, {})
    return recording


def alt(plot):
    return ElementTree.fromstring(plot.svg).attrib["aria-label"]


def svg_text(plot):
    """What is written in the figure: matplotlib has it as comments beside the letters' outlines."""
    return " ".join(" ".join(re.findall(r"<!-- (.*?) -->", plot.svg)).split())


class Growing(Recording):
    """One to which the thread adds just after its times were read."""

    @property
    def time_s(self):
        times = Recording.time_s.fget(self)
        if self is growing:
            self.add(len(self) + 1.0, {"utilization_percent": 50}, {})
        return times


growing = Growing({"card": "of this test"})


def test_what_is_read_while_the_thread_adds_is_of_one_length():
    growing.add(1.0, {"utilization_percent": 50}, {})
    assert len(growing.time_s) < len(growing) and growing.mean() == 50
    so_far = growing.so_far()
    growing.add(len(growing) + 1.0, {"utilization_percent": 50}, {})
    assert len(so_far.time_s) == len(so_far["utilization_percent"]) == len(so_far) < len(growing)
    assert "growing: 50 % on average" in alt(utilization_plot({"growing": growing}))


def test_phases_are_on_the_clock_of_the_samples():
    with sampled(of="cpu", hz=50) as s:
        time.sleep(0.05)
        with contextlib.suppress(ZeroDivisionError), s.phase("fails"):
            time.sleep(0.05)
            1 / 0  # noqa: B018
    ((name, start, end),) = s.phases
    assert name == "fails" and 0.05 <= start <= end - 0.05 and s.time_s[-1] > end - 0.03
    with pytest.raises(RuntimeError, match="where it is made"), s.so_far().phase("late"):
        pass


def test_the_mean_is_over_time():
    recording = Recording({"card": "of this test"})
    recording.add(1.0, {"utilization_percent": 100}, {})
    recording.add(5.0, {"utilization_percent": 0}, {})
    recording.add(6.0, {"utilization_percent": None}, {})
    assert recording.mean() == 20


def test_the_figure_says_in_words_what_is_to_be_seen():
    plot = utilization_plot({"spiky": made_up([0, 100] * 10), "smooth": made_up([90] * 20)}, "u")
    assert ElementTree.fromstring(plot.svg).attrib["role"] == "img" and plot.name == "u"
    said = alt(plot)
    assert "spiky: 50 % on average" in said and "smooth: 90 % on average" in said
    assert "between 0 and 100 %" in said and "between 90 and 90 %" in said


def test_a_row_for_each_card_and_ranks_that_share_one_share_it():
    def rank(r, uuid, host="a", **more):
        s = made_up([10 * r] * (10 + r), began=1000 + r, rank=r, uuid=uuid, host=host, device=0)
        s.phases += [("forward", 0.0, 0.25), ("backward", 0.25, 0.5), ("forward", 0.5, 0.75)]
        return s

    plot = utilization_plot([rank(0, "A"), rank(1, "A"), rank(2, "MIG-B")])
    said, drawn = alt(plot), svg_text(plot)
    assert "ranks 0 and 1, on one GPU: 10 % on average" in drawn and "rank 2: 20 %" in drawn
    assert (
        "forward" in drawn and "Phases of rank 1: forward 45 %, backward 23 % of the time" in said
    )
    assert "ranks 0 to 5, on one GPU" in alt(utilization_plot([rank(r, "A") for r in range(6)]))
    hosts = utilization_plot([[rank(0, "A")], [rank(1, "B", "b")]])
    assert "rank 0, a: 0 %" in svg_text(hosts) and "rank 1, b: 10 %" in svg_text(hosts)
    rows = _cards([rank(2, "A"), rank(1, "B")])
    assert [row.times[0] for row in rows] == [1, 0] and rows[0].color == RANK_COLORS[2]
    cards = [made_up([5], uuid=name, device=i) for i, name in enumerate("AB")]
    assert "GPU 0: 5 %" in alt(utilization_plot(cards)) and "GPU 1: 5 %" in alt(
        utilization_plot(cards)
    )


def test_nothing_to_draw():
    with pytest.raises(ValueError, match="no recording"):
        utilization_plot([[]])
    assert "x: utilization is not known" in alt(utilization_plot({"x": made_up([])}))
