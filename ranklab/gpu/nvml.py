"""What NVIDIA's GPUs do: through NVML, the library behind nvidia-smi.

CUDA counts the fastest GPU first (unless CUDA_DEVICE_ORDER=PCI_BUS_ID), NVML counts by bus, and
CUDA_VISIBLE_DEVICES hides some from CUDA alone. So a card is found by its own id, the UUID: torch
knows those of the cards that it counts. Without torch only the variables are left to go by.
"""

import os
import sys
from contextlib import suppress

READINGS = {
    "utilization_percent": lambda nvml, card: nvml.nvmlDeviceGetUtilizationRates(card).gpu,
    "memory_bytes": lambda nvml, card: nvml.nvmlDeviceGetMemoryInfo(card).used,
    "power_w": lambda nvml, card: nvml.nvmlDeviceGetPowerUsage(card) / 1000,
    "sm_clock_mhz": lambda nvml, card: nvml.nvmlDeviceGetClockInfo(card, nvml.NVML_CLOCK_SM),
    "memory_clock_mhz": lambda nvml, card: nvml.nvmlDeviceGetClockInfo(card, nvml.NVML_CLOCK_MEM),
}


ORDER = (
    "Which card is which is not certain: CUDA counts the fastest first, NVML by bus. "
    "CUDA_DEVICE_ORDER=PCI_BUS_ID makes them agree."
)


class NoGpu(RuntimeError):
    """There is no driver, or it shows this program no GPU: as it is on many machines."""


def gpus(device=None, nvml=None):
    """The GPUs that `device` means, open to be read: a list of Gpu.

    device: a number as the program counts, None for the one it works on, or "all".
    Raises NoGpu, or RuntimeError where pynvml is missing or there is no GPU of that number.
    """
    try:
        if nvml is None:
            import pynvml as nvml
        nvml.nvmlInit()
    except ImportError:
        raise RuntimeError(
            "GPUs are read with the package nvidia-ml-py, which is not installed here: "
            "pip install nvidia-ml-py"
        ) from None
    except nvml.NVMLError as error:
        raise NoGpu(
            f'no NVIDIA driver here: {error}. sampled(of="cpu") reads the CPU, with the same '
            "interface."
        ) from None
    try:
        seen, current, notes = _seen(nvml)
        number = current if device is None else device
        if not seen and not isinstance(device, int):
            raise NoGpu("the NVIDIA driver shows this program no GPU.")
        if device != "all" and number >= len(seen):
            visible = os.environ.get("CUDA_VISIBLE_DEVICES", "not set")
            raise RuntimeError(
                f"there is no GPU {number} here: this program sees {len(seen)} "
                f"(CUDA_VISIBLE_DEVICES: {visible})."
            )
        numbers = range(len(seen)) if device == "all" else [number]
        return [Gpu(nvml, seen[i], i, notes) for i in numbers]
    except nvml.NVMLError as error:
        raise RuntimeError(f"the NVIDIA driver does not answer: {error}") from None
    finally:
        nvml.nvmlShutdown()  # each Gpu has opened NVML once more


def torch_with_cuda():
    """The module torch, if the program uses it and it finds a GPU; else None."""
    torch = sys.modules.get("torch")
    return torch if torch and torch.cuda.is_available() else None


def _seen(nvml):
    """The GPUs that this program sees, in its order; the number of the one it works on; notes."""
    cards, notes = {}, []  # by bus: UUID -> (handle, name)
    for i in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(i)
            cards[_text(nvml.nvmlDeviceGetUUID(handle))] = handle, nvml.nvmlDeviceGetName(handle)
        except nvml.NVMLError as error:  # it is broken, or somebody else's
            notes.append(f"The host's card {i}, by bus, does not answer: {error}.")

    def by_id(uuid):
        """A card's may be abbreviated; all others are those of parts of a card (MIG)."""
        whole = [handle for full, (handle, _) in cards.items() if full.startswith(uuid)]
        return whole[0] if whole else nvml.nvmlDeviceGetHandleByUUID(uuid)

    if torch := torch_with_cuda():
        with suppress(RuntimeError, AttributeError):  # in a forked process, or it knows no UUIDs
            uuids = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
            ids = [(f"GPU-{each.uuid}", f"MIG-{each.uuid}") for each in uuids]
            seen = [by_id(gpu if gpu in cards else mig) for gpu, mig in ids]
            return seen, torch.cuda.current_device(), notes
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = list(cards) if visible is None else [name.strip() for name in visible.split(",")]
    seen, differ = [], len({_text(name) for _, name in cards.values()}) > 1
    with suppress(nvml.NVMLError, ValueError):  # CUDA reads on to the first that cannot be
        for name in names:
            by_number = not name.startswith(("GPU-", "MIG-"))
            seen.append(nvml.nvmlDeviceGetHandleByIndex(int(name)) if by_number else by_id(name))
    by_bus = os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    known = by_bus or not differ or (visible or "").startswith(("GPU-", "MIG-"))
    return seen, 0, notes if known else [*notes, ORDER]


class Gpu:
    """One GPU, or a part of one (MIG), to be read through NVML."""

    def __init__(self, nvml, handle, number, notes):
        self._nvml, self._handle, self.notes = nvml, handle, notes
        self.about = {
            "card": _text(nvml.nvmlDeviceGetName(handle)),
            "driver": _text(nvml.nvmlSystemGetDriverVersion()),
            "uuid": _text(nvml.nvmlDeviceGetUUID(handle)),
            "device": number,
        }
        nvml.nvmlInit()

    def begin(self):
        """Nothing is counted from here on: NVML tells of the moment."""

    def read(self):
        """Return (column -> reading, column -> why there is none) of this moment.

        Percent, bytes, watts and MHz. A utilization is NVML's: the share of the last part of a
        second (how long depends on the card) in which some kernel ran. What comes back here
        differs between cards, drivers and users, so any failure is an answer, too.
        """
        readings, missing = {}, {}
        for column, question in READINGS.items():
            try:
                readings[column] = float(question(self._nvml, self._handle))
            except Exception as error:
                told = isinstance(error, self._nvml.NVMLError)
                readings[column] = None
                missing[column] = str(error) if told else f"{type(error).__name__}: {error}"
        return readings, missing

    def close(self):
        """Let NVML go."""
        self._nvml.nvmlShutdown()


def _text(name):
    return name.decode() if isinstance(name, bytes) else name  # bytes in older versions
