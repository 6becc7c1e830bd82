"""A GPU as far as PyTorch lets one pretend: what lies on the wrong device is found without a card.

After `on()`, torch finds a GPU here. Its memory is the CPU's: a tensor made there has a mark on its
storage, and so has what is computed from it. To mix marked tensors with others, to hand them to
NumPy, or to draw them from a generator of the CPU is the error that it is on a GPU. As there,
random numbers are others than on the CPU. There is one stream, no NCCL, and no other rounding.
"""

import atexit
import contextlib
import functools
import os
import threading
from types import SimpleNamespace

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _device
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

CPU, CARD = torch.device("cpu"), torch.device("cuda:0")
BOTH = "Expected all tensors to be on the same device, but found at least two devices, {} and cpu!"
NUMPY = "can't convert {} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host "
# They take tensors of the CPU beside those of a GPU: to copy, and as indices.
MIXING = {"copy_", "_foreach_copy_", "index", "index_put", "index_put_", "set_", "barrier"}
# In these, Gloo reads and writes the memory of the host only.
OF_THE_HOST = {"send", "recv_", "recv_any_source_", "allreduce_coalesced_"}
OF_THE_HOST |= {"allgather_coalesced_", "allgather_into_tensor_coalesced_"}

_now = threading.local()  # .there: is all that is made now on the pretended GPU?
made = dict.fromkeys(("cpu", "cuda"), 0)  # how many tensors were made there, of nothing
_cpu_draws, _card_draws = torch.default_generator, torch.Generator()
_storage, _really = torch._C.TensorBase.untyped_storage, torch._C.TensorBase
_generator = torch.Generator


class Generator(_generator):
    """Random numbers, on the CPU or on the pretended GPU. Its seed tells (PyTorch forgets more)."""

    def __new__(cls, device="cpu"):
        own = super().__new__(cls)
        own.card = is_card(device)
        return own.manual_seed(own.initial_seed())

    device = property(lambda self: place_of(self))

    def manual_seed(self, seed):
        super().manual_seed(there(seed) if self.card else seed)
        return self


def there(seed):
    """What a seed is on the pretended GPU, where numbers are others than on the CPU."""
    return (seed + 77) | 2**62


def place_of(generator):
    """Where a generator draws."""
    return CARD if generator.initial_seed() & 2**62 else CPU


def is_card(device):
    """Whether this device, or the name of one, is a GPU."""
    return device is not None and torch.device(device).type == "cuda"


def on_card(tensor):
    """Whether this tensor lies on the pretended GPU."""
    try:
        return hasattr(_storage(tensor), "on_card")
    except (NotImplementedError, RuntimeError):  # such as a DTensor
        return is_card(_really.device.__get__(tensor))


def marked(value):
    """Put all tensors of this value onto the pretended GPU; return it."""
    for leaf in tree_leaves(value):
        if isinstance(leaf, torch.Tensor):
            _storage(leaf).on_card = True
    return value


class Pretended(TorchDispatchMode):
    """What each operation does about marks."""

    @classmethod
    def _should_skip_dynamo(cls):
        return False  # else torch imports its compiler

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs, name = dict(kwargs or {}), func.overloadpacket.__name__
        leaves = tree_leaves((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        kinds = {type(t).__torch_dispatch__ for t in tensors}
        if kinds - {torch.Tensor.__torch_dispatch__}:
            if any(isinstance(t, FakeTensor) for t in tensors):
                return func(*args, **kwargs)
            return NotImplemented  # a DTensor: its parts will come
        marks = [on_card(t) for t in tensors]
        asked = getattr(_now, "there", False) or is_card(kwargs.get("device"))
        to_card = asked if kwargs.get("device") else any(marks)
        if any(marks) and name not in MIXING:
            self._check(func, name, tensors, marks)
        draws = torch.Tag.nondeterministic_seeded in func.tags
        for leaf in leaves:
            if isinstance(leaf, _generator):
                draws = False
                if to_card != is_card(place_of(leaf)):
                    kinds = ("cuda", "cpu") if to_card else ("cpu", "cuda")
                    words = "Expected a '{}' device type for generator but found '{}'"
                    raise RuntimeError(words.format(*kinds))
        if kwargs.get("device"):
            kwargs["device"] = CPU
        if not tensors and func.namespace == "aten":
            made["cuda" if to_card else "cpu"] += 1
        with _drawn_there() if to_card and draws else contextlib.nullcontext():
            result = func(*args, **kwargs)
        if to_card and func.namespace != "c10d" and name not in MIXING - {"index", "index_put"}:
            marked(result)
        return result

    def _check(self, func, name, tensors, marks):
        of_c10d = func.namespace == "c10d"
        others = [t for t, mark in zip(tensors, marks, strict=True) if not mark]
        if any(t.dim() or of_c10d or (name.endswith("_") and t is tensors[0]) for t in others):
            raise RuntimeError(f"{BOTH.format(CARD)} (when calling {func})")
        if of_c10d and name in OF_THE_HOST:
            raise RuntimeError(f"Gloo, {name}: Bad address")


@contextlib.contextmanager
def _drawn_there():
    before = _cpu_draws.get_state()
    _cpu_draws.set_state(_card_draws.get_state())
    try:
        yield
    finally:
        _card_draws.set_state(_cpu_draws.get_state())
        _cpu_draws.set_state(before)


class _Copied(torch.autograd.Function):
    """A copy on the other device; its gradient goes back."""

    @staticmethod
    def forward(ctx, tensor):
        with _disable_current_modes():  # and so without a mark
            copy = tensor.detach().clone()
        return copy if on_card(tensor) else marked(copy)

    @staticmethod
    def backward(ctx, gradient):
        return _Copied.apply(gradient)


def _moved(tensor, place):
    """This tensor on the CPU or on the pretended GPU: a copy, if it is not there."""
    return tensor if on_card(tensor) == is_card(place) else _Copied.apply(tensor)


def _parsed(*args, parse=torch._C._nn._parse_to, **kwargs):
    """What is asked of `to`: device, type, whether it may take time, memory format."""
    like = kwargs.pop("other", None)
    args = args if like is None else (like, *args)
    found = parse(*args, **kwargs)
    if args and isinstance(args[0], torch.Tensor):
        found = (args[0].device, *found[1:])
    return found


def _to(tensor, *args, copy=False, **kwargs):
    place, dtype, _, layout = _parsed(*args, **kwargs)
    moved = _moved(tensor, place) if place is not None else tensor
    how = {"copy": True} if copy else {}
    how |= {"memory_format": layout} if layout else {}
    how |= {"dtype": dtype} if dtype else {}
    return _really.to(moved, **how) if how else moved


def _numpy(tensor, plainly):
    if on_card(tensor):
        raise TypeError(NUMPY.format(CARD) + "memory first.")
    return plainly()


def _of_data(make):
    """torch.tensor and such, which look at their data themselves."""

    def of_data(data, *args, device=None, **kwargs):
        if device is None:
            known = isinstance(data, torch.Tensor) and make is not torch.tensor
            device = data.device if known else torch.empty(0).device
        if isinstance(data, torch.Tensor) and make is not torch.tensor:
            return _to(data, device, *[kwargs["dtype"]] if kwargs.get("dtype") else ())
        made["cuda" if is_card(device) else "cpu"] += 1
        tensor = make(data, *args, device="cpu", **kwargs)
        return marked(tensor) if is_card(device) else tensor

    return of_data


def _new_tensor(tensor, data, *, device=None, **kwargs):
    kwargs.setdefault("dtype", tensor.dtype)
    return torch.tensor(data, device=device or tensor.device, **kwargs)


def _beside(function):
    """A function whose inner tensors PyTorch makes beside its argument, in C++."""

    @functools.wraps(function)
    def beside(tensor, *args, **kwargs):
        if not on_card(tensor):
            return function(tensor, *args, **kwargs)
        with _disable_current_modes():
            return marked(function(tensor, *args, **kwargs))

    return beside


def _there_too(function, beside):
    """What C++ makes beside the tensors of the GPU that it is given: in backward, and in DDP."""

    @functools.wraps(function)
    def there_too(*args, **kwargs):
        before, _now.there = getattr(_now, "there", False), beside(*args)
        try:
            return function(*args, **kwargs)
        finally:
            _now.there = before

    return there_too


def _any_there(tensors, *_):
    return any(map(on_card, tensors))


class _Reducer(torch.distributed.Reducer):
    """DDP's, which makes its buckets in C++."""

    def __init__(self, parameters, *args, **kwargs):
        self.there = _any_there(parameters)
        _there_too(super().__init__, lambda *_: self.there)(parameters, *args, **kwargs)

    def _rebuild_buckets(self):
        return _there_too(super()._rebuild_buckets, lambda *_: self.there)()


def _no_kernel(*_):
    raise ValueError("it needs a kernel of a GPU that is there")


def _seed(seed):
    _card_draws.manual_seed(there(seed))


def on():
    """From here on, torch finds a GPU; in this thread, and in those that are started."""
    tensor, plain_numpy, plain_array = torch.Tensor, torch.Tensor.numpy, torch.Tensor.__array__
    deep = tensor.__deepcopy__
    _device._device_constructors()  # it keeps what these functions are now
    for name in ("tensor", "as_tensor", "asarray"):
        setattr(torch, name, _of_data(getattr(torch, name)))
    tensor.device = property(lambda x: CARD if on_card(x) else _really.device.__get__(x))
    tensor.is_cuda = property(on_card)
    tensor.get_device = lambda x: 0 if on_card(x) else -1
    torch._C._nn._parse_to = _parsed
    tensor.to, tensor.new_tensor = _to, _new_tensor
    tensor.cpu = lambda x, **_: _moved(x, CPU)
    tensor.cuda = lambda x, *_, **__: _moved(x, CARD)
    tensor.numpy = lambda x, *, force=False: (
        plain_numpy(x.detach().cpu()) if force else _numpy(x, lambda: plain_numpy(x))
    )
    tensor.__array__ = lambda x, *a, **how: _numpy(x, lambda: plain_array(x, *a, **how))

    def copied(x, memo):
        known = id(x) in memo
        copy = deep(x, memo)
        return marked(copy) if on_card(x) and not known else copy

    tensor.__deepcopy__ = copied
    c10d, autograd = torch.distributed, torch.autograd
    c10d.Reducer = _Reducer
    autograd._engine_run_backward = _there_too(autograd._engine_run_backward, _any_there)
    own = autograd.function.BackwardCFunction  # what is written in Python knows what it asks for
    own.apply = _there_too(own.apply, lambda *_: False)
    torch.nn.DataParallel.scatter = lambda self, inputs, kwargs, _: ((inputs,), (kwargs,))
    torch.nn.SyncBatchNorm.forward = _no_kernel
    torch.nn.functional.one_hot = _beside(torch.nn.functional.one_hot)
    torch.Generator = torch._C.Generator = Generator
    cuda = torch.cuda
    answers = {"is_available": True, "is_initialized": True, "device_count": 1, "current_device": 0}
    answers["get_device_capability"] = (8, 0)
    answers["get_device_properties"] = SimpleNamespace(total_memory=2**33, multi_processor_count=9)
    answers["current_stream"] = SimpleNamespace(synchronize=lambda: None)
    answers["stream"] = contextlib.nullcontext()
    answers |= dict.fromkeys(("set_device", "synchronize", "empty_cache", "_lazy_init"))
    for name, answer in answers.items():
        setattr(cuda, name, lambda *_, answer=answer: answer)
    torch.accelerator.current_stream = lambda *_: SimpleNamespace(is_capturing=lambda: False)
    cuda.manual_seed, cuda.manual_seed_all = _seed, lambda seed: _seed(seed)
    cuda.get_rng_state = lambda *_: _card_draws.get_state()
    cuda.set_rng_state = lambda state, *_: _card_draws.set_state(state)
    torch.serialization.register_package(
        5,
        lambda storage: "cuda:0" if hasattr(storage, "on_card") else None,
        _placed,
    )
    _seed(0)
    os.cpu_count = lambda: 1  # nothing that is timed here says anything: scripts assert less
    Pretended().__enter__()
    run = threading.Thread.run

    def run_pretended(thread):
        with Pretended():
            run(thread)

    threading.Thread.run = run_pretended


def _placed(storage, location):
    if is_card(location):
        storage.on_card = True
        return storage
    return None


def say_at_the_end():
    """Let every rank of a script say how many tensors it has made where."""

    def say():
        if "RANK" in os.environ:
            print(f"tensors_on_card_{os.environ['RANK']} = {made['cuda']}", flush=True)

    atexit.register(say)
