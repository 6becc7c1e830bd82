"""How ipyparallel packs the values that travel between the notebook and the ranks.

Left alone, it packs classes of the notebook in a way of its own, which fails for many (dataclasses,
those with `super()`), packs their instances by the mere name of the class, sorts dicts by their
keys, and hands out arrays that cannot be written to. Here cloudpickle packs classes with all that
is in them.
"""

import builtins
import copyreg
import io
import pickle
import sys
from collections import ChainMap
from types import CodeType, FunctionType, SimpleNamespace
from typing import ClassVar
from weakref import WeakSet

import cloudpickle
from ipyparallel.serialize import canning, serialize

_own, _received = WeakSet(), WeakSet()  # classes that were packed, and unpacked, in this process
_moving = False  # do tensors leave the device that they lie on?


def by_value():
    """Pack by value what the notebook or a rank defines; unpack arrays that can be written to.

    To be called in each of the processes.

    Without it: no instance of a reader's class gets to the ranks, dicts come in another order, or
    not at all if their keys are of several types, and arrays there are read-only.
    """
    serialize.sorted = list  # the order in which it takes the items of a dict
    serialize.pickle = SimpleNamespace(dumps=_dumps, loads=pickle.loads)
    canning.can_map.pop(type, None)  # leaves classes to the pickler
    canning.can_map[FunctionType] = _canned
    canning.CannedArray.get_object = _writable


def know_devices(devices):
    """Let tensors arrive where the receiver makes its own, if a rank has a device but the CPU.

    devices: the names of all ranks' devices. To be called in each of the processes.

    Without it: a tensor from a GPU comes to a notebook that may have none, and what is pushed to a
    rank with a GPU lies on its CPU.
    """
    global _moving
    _moving = any(name != "cpu" for name in devices)


def _dumps(value, protocol):
    file = io.BytesIO()
    _Pickler(file, protocol).dump(value)
    return file.getvalue()


AS_BEFORE = {
    # As ipyparallel packs it: a rank on another host may be without cloudpickle.
    CodeType: copyreg.dispatch_table[CodeType],
    # Not at all: cloudpickle would send the text of a file in its place.
    io.TextIOWrapper: lambda file: file.__reduce_ex__(serialize.PICKLE_PROTOCOL),
}


class _Pickler(cloudpickle.Pickler):
    """cloudpickle's, where functions use the names of the place that they come to.

    So a method may use `rank`, just as a function given to `ranks.run` may.
    """

    dispatch_table: ClassVar = ChainMap(AS_BEFORE, cloudpickle.Pickler.dispatch_table)

    def __init__(self, file, protocol):
        super().__init__(file, protocol)
        self.on_cpu = {}  # id -> tensor, of those that stand for others

    def reducer_override(self, thing):
        if _moving and _is_plain_tensor(thing) and id(thing) not in self.on_cpu:
            return self._moved(thing)
        reduced = super().reducer_override(thing)
        if not isinstance(reduced, tuple) or len(reduced) != 6:  # goes by its name
            return reduced
        make, arguments, state, _, _, set_state = reduced
        if isinstance(thing, FunctionType):
            if thing.__globals__ is not vars(sys.modules["__main__"]):  # made by dataclasses, say
                return reduced
            code, _, *rest = arguments
            attributes, slots = state
            arguments = (code, *rest)
            state = attributes, {**slots, "__globals__": {}}
            return _function, arguments, state, None, None, set_state
        if thing not in _received:
            _own.add(thing)
        return make, arguments, (set_state, state), None, None, _complete

    def _moved(self, tensor):
        """Pack a tensor from the CPU; PyTorch puts it on the default device of whoever unpacks."""
        import torch

        if tensor.requires_grad:
            return torch.Tensor.requires_grad_, (tensor.detach(),)
        copy = tensor.detach().cpu()
        self.on_cpu[id(copy)] = copy
        return torch.as_tensor, (copy,)


def _is_plain_tensor(thing):
    """Is it one that holds its own numbers? Parameters, modules, ... are made of such."""
    torch = sys.modules.get("torch")
    return torch is not None and type(thing) is torch.Tensor and not vars(thing)


def _function(code, name, defaults, closure):
    names = vars(sys.modules["__main__"])
    names.setdefault("__builtins__", builtins)
    return FunctionType(code, names, name or code.co_name, defaults, closure)


def _complete(made, state):
    """Give a class that came its contents, unless it comes home: there it has its own."""
    set_state, contents = state
    if made not in _own:
        _received.add(made)
        set_state(made, contents)
    return made


def _canned(function):
    """As ipyparallel cans it, but for what knows itself, as a decorator's wrapper that counts."""
    cells = function.__closure__ or ()
    knows_itself = any(cell.cell_contents is function for cell in cells)
    return function if knows_itself else canning.CannedFunction(function)


_view = canning.CannedArray.get_object


def _writable(canned, g=None):
    array = _view(canned, g)
    return array if array.flags.writeable else array.copy()
