"""The pretended GPU of pretend.py: what a GPU would refuse is refused, and the rest goes."""

import subprocess
import sys
from pathlib import Path

BEFORE = """
import copy, io, pickle
import numpy as np, torch
from torch import nn
import pretend
pretend.on()
torch.set_num_threads(1)
here, there = torch.ones(3), torch.ones(3, device="cuda")
def fails(error, words, make):
    try:
        made = make()
    except error as found:
        assert words in str(found), found
    else:
        raise AssertionError(f"nobody minds: {made}")
"""
CASES = {
    "mixed devices": """
fails(RuntimeError, "cuda:0 and cpu", lambda: here + there)
fails(RuntimeError, "cuda:0 and cpu", lambda: here.add_(there[0]))
assert (there + torch.tensor(1.0)).is_cuda and there[torch.tensor([0])].is_cuda
""",
    "a module": """
model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
fails(RuntimeError, "cuda:0 and cpu", lambda: model(torch.ones(2, 3, device="cuda")))
model = copy.deepcopy(model).to("cuda")
optimizer = torch.optim.Adam(model.parameters(), weight_decay=0.1)
model(torch.ones(2, 3, device="cuda")).sum().backward()
optimizer.step()
assert all(p.is_cuda and p.grad.is_cuda for p in model.parameters())
""",
    "NumPy": """
fails(TypeError, "Use Tensor.cpu()", there.numpy)
fails(TypeError, "Use Tensor.cpu()", lambda: np.asarray([there])[0] + np.asarray(there))
assert there.cpu().numpy().sum() == there.numpy(force=True).sum() == there.sum().item() == 3
""",
    "from NumPy": """
torch.set_default_device("cuda")
fails(RuntimeError, "cuda:0 and cpu", lambda: torch.zeros(3) + torch.from_numpy(np.ones(3)))
assert torch.tensor([1]).is_cuda and torch.as_tensor(np.ones(3)).is_cuda
assert not torch.tensor([1], device="cpu").is_cuda and not here.new_tensor([1]).is_cuda
""",
    "a generator of the CPU": """
torch.set_default_device("cuda")
words = "Expected a 'cuda' device type for generator but found 'cpu'"
fails(RuntimeError, words, lambda: torch.randperm(3, generator=torch.Generator()))
fails(RuntimeError, words, lambda: there.normal_(generator=torch.Generator()))
torch.randperm(3, generator=torch.Generator(), device="cpu")
torch.randperm(3, generator=torch.Generator("cuda").manual_seed(0))
""",
    "random numbers of its own": """
torch.manual_seed(0)
first, other = torch.randn(3, device="cuda"), torch.randn(3)
state = torch.cuda.get_rng_state()
second = torch.randn(3, device="cuda")
torch.cuda.set_rng_state(state)
assert torch.equal(second, torch.randn(3, device="cuda"))
torch.manual_seed(0)
assert torch.equal(other, torch.randn(3))  # a GPU's do not move the CPU's
assert torch.equal(first, torch.randn(3, device="cuda")) and not torch.equal(first.cpu(), other)
""",
    "saved": """
file = io.BytesIO()
torch.save({"x": there}, file)
def load(**how):
    file.seek(0)
    return torch.load(file, **how)["x"]
assert load().is_cuda and not load(map_location="cpu").is_cuda
fails(RuntimeError, "cuda:0 and cpu", lambda: load() + here)
assert pickle.loads(pickle.dumps(there)).is_cuda and copy.deepcopy(there).is_cuda
""",
    "there and back, with gradients": """
x = torch.ones(3, requires_grad=True)
(x.cuda() * there).cpu().mul(here).sum().backward()
assert not x.grad.is_cuda and x.to(there).is_cuda and not there.to(x).is_cuda
""",
    "messages and collectives over Gloo": """
import os, tempfile
import torch.distributed as dist
from ranklab.start.devices import send_over_host
meet, rank = f"file://{tempfile.mkdtemp()}/meet", 0 if (child := os.fork()) else 1
dist.init_process_group("gloo", meet, rank=rank, world_size=2)
torch.set_default_device("cuda")
dist.all_reduce(there)
assert there.tolist() == [2, 2, 2]
fails(RuntimeError, "Bad address", lambda: dist.recv(there, 1 - rank))
fails(RuntimeError, "cuda:0 and cpu", lambda: dist.all_gather([here, here], there))
send_over_host()
send_over_host()
work = dist.isend(there + rank, 1 - rank)
coming = dist.irecv(there, 1 - rank)
assert coming.wait() and work.wait() and there.is_cuda and there.tolist() == [3 - rank] * 3
if rank == 0:
    dist.send(torch.arange(2, device="cpu"), 1)
    dist.send(torch.arange(2), 1)
else:
    for box in (torch.zeros(2, dtype=torch.int64), torch.zeros(2, dtype=torch.int64, device="cpu")):
        assert dist.recv(box, 0) == 0 and box.tolist() == [0, 1]
pair = [dist.P2POp(dist.isend, there, 1 - rank), dist.P2POp(dist.irecv, there.clone(), 1 - rank)]
for work in dist.batch_isend_irecv(pair):
    work.wait()
dist.destroy_process_group()
if rank == 1:
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
""",
}


def test_the_pretended_gpu():
    code = BEFORE
    for name, case in CASES.items():
        code += f"\nprint({name!r})\ntorch.set_default_device(None)\n{case}"
    tests = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tests, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert done.stdout.split("\n")[:-1] == list(CASES)
