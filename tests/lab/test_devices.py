"""Which device and backend: `choose_device`, used by notebooks and scripts alike."""

import os
import pickle
import subprocess
import sys
from textwrap import dedent

import cloudpickle
import pytest
import torch
from ipyparallel.serialize import serialize

from bookmaker.script.parts import PARTS
from ranklab.errors import ArgumentError
from ranklab.start import arguments
from ranklab.start.devices import choose_device
from ranklab.upstream import packing

NCCL, GLOO = "nccl", "gloo"


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch):
    for name in ("RANKLAB_DEVICE", "RANKLAB_RANKS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("size", "gpus", "devices", "backend"),
    [
        (4, 0, "cpu cpu cpu cpu", GLOO),
        (4, 1, "cuda:0 cuda:0 cuda:0 cuda:0", GLOO),
        (1, 1, "cuda:0", NCCL),
        (4, 2, "cuda:0 cuda:1 cuda:0 cuda:1", GLOO),
        (2, 2, "cuda:0 cuda:1", NCCL),
        (4, 8, "cuda:0 cuda:1 cuda:2 cuda:3", NCCL),
    ],
)
def test_notebook_and_script_choose_alike(monkeypatch, size, gpus, devices, backend):
    """gpus: what torch reports: one for a MIG slice, fewer with CUDA_VISIBLE_DEVICES."""
    monkeypatch.setattr(arguments, "count_gpus", lambda: gpus)
    plan = arguments.plan(size, None, None, 20, False, None)
    assert (" ".join(plan.devices), plan.backend) == (devices, backend)
    script = {"os": os}
    exec(PARTS["choose_device"], script)
    chosen = [script["choose_device"](rank, size, gpus) for rank in range(size)]
    assert chosen == [(device, backend) for device in devices.split()]


@pytest.mark.parametrize(
    ("asked", "variable", "gpus", "chosen"),
    [
        (None, "cpu", 8, ("cpu", GLOO)),
        (None, "cuda", 8, ("cuda:1", NCCL)),
        ("cpu", "cuda", 0, ("cpu", GLOO)),  # what Ranks(...) says goes first
        ("cuda", "cpu", 8, ("cuda:1", NCCL)),
        ("cuda:3", None, 8, ("cuda:3", GLOO)),  # NCCL wants a card for each rank
    ],
)
def test_who_decides(monkeypatch, asked, variable, gpus, chosen):
    if variable:
        monkeypatch.setenv("RANKLAB_DEVICE", variable)
    assert choose_device(1, 4, gpus, asked) == chosen
    assert choose_device(1, 4, gpus, asked, GLOO) == (chosen[0], GLOO)


def test_engines_elsewhere_talk_through_gloo(monkeypatch):
    monkeypatch.setattr(arguments, "count_gpus", lambda: 8)
    assert arguments.plan(4, None, None, 20, False, "slurm").backend == GLOO
    assert arguments.plan(4, NCCL, None, 20, False, "slurm").backend == NCCL


@pytest.mark.parametrize(
    ("variable", "says"),
    [
        ("cuda", r"RANKLAB_DEVICE=cuda: torch finds no GPU here: take 'cpu'\."),
        ("tpu", r"RANKLAB_DEVICE=tpu is not known\. There are: 'cpu' and 'cuda'\."),
    ],
)
def test_what_is_not_there_is_a_sentence(monkeypatch, variable, says):
    monkeypatch.setenv("RANKLAB_DEVICE", variable)
    monkeypatch.setattr(arguments, "count_gpus", lambda: 0)
    with pytest.raises(ArgumentError, match=f"^{says}$"):
        arguments.plan(2, None, None, 20, False, None)


# ---- in a script: all ranks, of all hosts, agree -------------------------------------------------

HOSTS = """
import os, sys
import torch
from torch import distributed as dist

rank, gpus = int(sys.argv[1]), int(sys.argv[2].split(",")[int(sys.argv[1])])
os.environ |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
torch.cuda.device_count = lambda: gpus
store, world_size = dist.FileStore(sys.argv[3], 2), 2
"""


@pytest.mark.parametrize(
    ("gpus", "variable", "says"),
    [
        ("1,1", "", "cuda:0 cpu:gloo,cuda:nccl"),
        ("1,0", "", "cuda:0 gloo|cpu gloo"),
        ("1,0", "cuda", "RANKLAB_DEVICE=cuda: torch finds no GPU here: take 'cpu'."),
    ],
)
def test_two_hosts_agree(tmp_path, gpus, variable, says):
    text = PARTS["choose_together"].replace(", DEVICE, BACKEND", "")
    text = dedent(HOSTS) + PARTS["choose_device"] + "\n" + text
    text += "\ndevice, backend = choose_together()\nprint(device, backend)\n"
    environment = {**os.environ, "RANKLAB_DEVICE": variable}
    command = [sys.executable, "-c", text]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), gpus, str(tmp_path / "meet")],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    told = [process.communicate(timeout=250) for process in ranks]
    if variable:
        assert [process.returncode for process in ranks] == [1, 0]
        assert told == [("", f"{says}\n"), ("", "")]
    else:
        outputs = [out.strip() for out, _ in told]
        assert outputs == (says.split("|") if "|" in says else [says, says])


# ---- values that travel --------------------------------------------------------------------------


@pytest.fixture
def a_receiver_with_a_device():
    """The `meta` device takes the place of a card: PyTorch has it everywhere."""
    packing.know_devices(("cpu", "meta"))
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)
    packing.know_devices(("cpu", "cpu"))


def sent(value):
    return pickle.loads(packing._dumps(value, serialize.PICKLE_PROTOCOL))


def test_tensors_arrive_on_the_receivers_device(a_receiver_with_a_device):
    with torch.device("cpu"):
        module, leaf = torch.nn.Linear(2, 3), torch.ones(2, requires_grad=True)
    came = sent({"module": module, "state": module.state_dict(), "leaf": [leaf, leaf]})
    tensors = [*came["module"].parameters(), *came["state"].values(), *came["leaf"]]
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    assert isinstance(came["module"].weight, torch.nn.Parameter)
    first, second = came["leaf"]
    assert first is second and first.requires_grad and first.is_leaf
    assert leaf.device.type == module.weight.device.type == "cpu"


def test_on_the_cpu_nothing_is_packed_in_another_way():
    value = {"x": torch.arange(3.0), "module": torch.nn.Linear(2, 3)}
    plain = packing._dumps(value, serialize.PICKLE_PROTOCOL)
    assert b"as_tensor" not in plain
    assert plain == cloudpickle.dumps(value, serialize.PICKLE_PROTOCOL)
