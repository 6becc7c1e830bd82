"""What an NVIDIA GPU does: through NVML, the library behind nvidia-smi."""

import os
import time


class Gpu:
    """Reads one GPU through NVML."""

    def __init__(self, device, nvml):
        if nvml is None:
            import pynvml as nvml
        self.nvml = nvml
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            raise RuntimeError(
                f"no NVIDIA driver here: {error}. "
                'sampled(of="cpu") reads the CPU, with the same interface.'
            ) from None
        try:
            self._handle = self._find(device)
            self.about = {
                "card": _text(nvml.nvmlDeviceGetName(self._handle)),
                "driver": _text(nvml.nvmlSystemGetDriverVersion()),
            }
        except BaseException:
            nvml.nvmlShutdown()
            raise

    def _find(self, device):
        nvml, number = self.nvml, device
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        names = visible.split(",") if visible is not None else []
        try:
            if visible is not None:  # the program's first GPU is the first of these
                number = names[device].strip()
                if not number.isdigit():
                    return nvml.nvmlDeviceGetHandleByUUID(number)
            return nvml.nvmlDeviceGetHandleByIndex(int(number))
        except (IndexError, nvml.NVMLError) as error:
            there = f"CUDA_VISIBLE_DEVICES={visible}" if visible is not None else "all are visible"
            raise RuntimeError(
                f"there is no GPU {device} here: NVML counts {nvml.nvmlDeviceGetCount()}, and "
                f"{there} ({error})."
            ) from None

    def begin(self):
        """Nothing before now counts."""
        self._asked = time.time_ns() // 1000  # microseconds, as NVML counts them

    def read(self):
        """Return (column -> reading, pid -> its readings) of this moment.

        Percent, bytes, watts and MHz; None for what this card or driver does not tell. A
        utilization is NVML's, over the last part of a second (how long depends on the card).
        """
        nvml, handle = self.nvml, self._handle
        busy = self._ask(nvml.nvmlDeviceGetUtilizationRates, handle)
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, handle)
        milliwatt = self._ask(nvml.nvmlDeviceGetPowerUsage, handle)
        return {
            "utilization_percent": busy and busy.gpu,
            "memory_controller_percent": busy and busy.memory,
            "memory_bytes": memory and memory.used,
            "power_w": milliwatt and milliwatt / 1000,
            "sm_clock_mhz": self._ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
            "memory_clock_mhz": self._ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_MEM),
        }, self._processes()

    def _processes(self):
        """What each process has of the card, where NVML tells; pids are those of the host."""
        nvml, found = self.nvml, {}
        for p in self._ask(nvml.nvmlDeviceGetComputeRunningProcesses, self._handle) or []:
            found[p.pid] = {"utilization_percent": None, "memory_bytes": p.usedGpuMemory}
        for p in self._ask(nvml.nvmlDeviceGetProcessUtilization, self._handle, self._asked) or []:
            found.setdefault(p.pid, {"memory_bytes": None})["utilization_percent"] = p.smUtil
            self._asked = max(self._asked, p.timeStamp)
        return found

    def _ask(self, question, *args):
        """NVML's answer; None where this card, driver or user does not get one."""
        nvml = self.nvml
        try:
            return question(*args)
        except nvml.NVMLError as error:
            nothing = (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_NOT_FOUND)
            if error.value in (*nothing, nvml.NVML_ERROR_NO_PERMISSION):
                return None
            raise

    def close(self):
        """Let NVML go."""
        self.nvml.nvmlShutdown()


def _text(name):
    return name.decode() if isinstance(name, bytes) else name  # bytes in older versions
