"""What the cells do that go wrong, by the name of the fault: source code for the ranks."""

# Cells in which ranks wait in vain. K is a rank by chance, BIG a number of floats.
STUCK = {
    "recv_circle": "x = torch.zeros(2)\ndist.recv(x, src=(rank + 1) % world_size)",
    "send_circle": "dist.send(torch.zeros(BIG), dst=(rank + 1) % world_size)",
    "pairs": "dist.recv(torch.zeros(1), src=rank ^ 1)",
    "one_missing": "x = torch.ones(4)\nif rank != K:\n    dist.all_reduce(x)",
    "one_alone": "if rank == K:\n    dist.barrier()",
    "other_order": (
        "x = torch.ones(2)\nif rank == K:\n    dist.recv(x, src=(rank + 1) % world_size)\n"
        "dist.all_reduce(x)"
    ),
    "new_group_alone": "if rank == K:\n    g = dist.new_group([K])",
    "new_group_all_but_one": "if rank != K:\n    g = dist.new_group()",
    "subgroup": (
        "g = dist.new_group(list(range(world_size)))\nif rank != K:\n    dist.barrier(group=g)"
    ),
    "destroyed_by_one": (
        "if rank == K:\n    dist.destroy_process_group()\nelse:\n    dist.all_reduce(torch.ones(1))"
    ),
    "wrong_tag": (
        "x = torch.zeros(BIG)\nif rank == 0:\n    dist.send(x, 1, tag=1)\n"
        "elif rank == 1:\n    dist.recv(x, 0, tag=2)"
    ),
    "handles": "h = dist.irecv(torch.zeros(1), src=(rank + 1) % world_size)\nh.wait()",
    "async_collective": "h = dist.all_reduce(torch.ones(1), async_op=True) if rank != K else None\n"
    "if h:\n    h.wait()",
    "any_source": "if rank == 0:\n    dist.recv(torch.zeros(1))",
    "objects": "o = [None] * world_size\nif rank != K:\n    dist.all_gather_object(o, rank)",
    "batch": (
        "ops = [dist.P2POp(dist.irecv, torch.zeros(1), (rank + 1) % world_size)]\n"
        "[h.wait() for h in dist.batch_isend_irecv(ops)]"
    ),
    "nested": (
        "def outer():\n    def inner():\n        dist.recv(torch.zeros(1), src=rank ^ 1)\n"
        "    inner()\nouter()"
    ),
    "thread_joined": (
        "import threading\n"
        "t = threading.Thread(target=lambda: dist.recv(torch.zeros(1), rank ^ 1))\n"
        "t.start()\nt.join()"
    ),
    "ddp": (
        "from torch.nn.parallel import DistributedDataParallel\n"
        "net = DistributedDataParallel(torch.nn.Linear(4, 4))\n"
        "loss = net(torch.ones(2, 4)).sum()\nif rank != K:\n    loss.backward()"
    ),
    "size_by_hand": "n = torch.tensor([1])\nfor i in range(3 if rank == K else 2):\n"
    "    dist.all_reduce(n)",
}
# What keeps a rank busy without any communication.
BUSY = {
    "sleep": "import time\ntime.sleep(1000)",
    "loop": "while True:\n    pass",
    "one_loops": "if rank == K:\n    while True:\n        pass\ndist.barrier()",
    "deaf_loop": (
        "import time\nif rank == K:\n    while True:\n        try:\n            time.sleep(1000)\n"
        "        except KeyboardInterrupt:\n            pass"
    ),
    "child": "import subprocess\nsubprocess.run(['sleep', '1000'])",
    "lock": "import threading\nl = threading.Lock()\nl.acquire()\nl.acquire()",
    "steps": "import time\nfor i in range(1000):\n    dist.all_reduce(torch.ones(1000))\n"
    "    time.sleep(0.01)",
    "prints": "while True:\n    print('y' * 200)",
}
FAILS = {  # what one rank (K) does while the others wait for it
    "raises": "raise ValueError('K')",
    "strange_error": (
        "class Strange(Exception):\n        def __init__(self, a, b): pass\n"
        "        def __str__(self): raise RuntimeError('no words')\n    raise Strange(1, 2)"
    ),
    "long_error": "raise ValueError('z' * 3_000_000)",
    "recursion": "f = lambda: f()\n    f()",
    "exits": "import sys; sys.exit(3)",
    "interrupts_itself": "raise KeyboardInterrupt",
    "memory": "bytearray(1 << 60)",
    "group_of_one_rank": "dist.recv(torch.zeros(1), src=rank)",
}
DIES = {  # how one rank dies while the others wait for it
    "os_exit": "import os; os._exit(3)",
    "os_exit_0": "import os; os._exit(0)",
    "segfault": "import ctypes; ctypes.string_at(0)",
    "abort": "import os; os.abort()",
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "killed_by_a_limit": (
        "import resource; resource.setrlimit(resource.RLIMIT_CPU, (1, 1))\n    while True: pass"
    ),
    "with_a_child": (
        "import os, subprocess; subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
        "    os._exit(4)"
    ),
    "with_a_fork": (
        "import os, time\n    if os.fork() == 0:\n        time.sleep(1000)\n    os._exit(5)"
    ),
}
MISMATCHES = {
    "sizes": "dist.all_reduce(torch.ones(BIG if rank == K else 4))",
    "dtypes": "dist.all_reduce(torch.ones(4, dtype=torch.int64 if rank == K else torch.float32))",
    "dtypes_of_one_size": (
        "dist.all_reduce(torch.ones(4, dtype=torch.int32 if rank == K else torch.float32))"
    ),
    "operations": (
        "x = torch.ones(4)\nif rank == K:\n    dist.broadcast(x, src=K)\nelse:\n"
        "    dist.all_reduce(x)"
    ),
    "roots": "dist.broadcast(torch.ones(4), src=rank)",
    "message_too_long": (
        "if rank == 0:\n    dist.send(torch.ones(BIG), 1)\nelif rank == 1:\n"
        "    dist.recv(torch.ones(2), 0)"
    ),
}
