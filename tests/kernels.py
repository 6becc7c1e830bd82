"""A notebook's kernel for tests: cells run in it one after the other, as a reader runs them."""

import contextlib
import os
import queue
import time

from jupyter_client.manager import KernelManager

from ranklab.start.guardian import belonging_to, has_ended


class Notebook:
    """A kernel, and cells run in it one after the other."""

    def __init__(self, **environment):
        self.on_screen = {}  # {display: its text}, of those that may be replaced
        try:
            self._start(environment)
        except RuntimeError:  # its ports were free when they were chosen, and not when it asked
            self._start(environment)
        self.pid = self.manager.provisioner.process.pid

    def _start(self, environment):
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel(env={**os.environ, **environment})
        self.client = self.manager.client()
        self.client.start_channels()
        try:
            self.client.wait_for_ready(timeout=60)
        except BaseException:
            self.close()
            raise

    def start(self, code):
        # A cell that fails drops those that wait behind it, unless it is told not to; a test that
        # goes on after another one's failure has its next cell waiting there.
        return self.client.execute(code, stop_on_error=False)

    def outputs(self, message_id, timeout=60, until=None):
        """Return (all that was shown as text, the error as "name: value" or None).

        until: return as soon as that is shown; the error is None then, as the cell still runs.
        """
        shown, error = [], None
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            try:
                message = self.client.get_iopub_msg(timeout=1)
            except queue.Empty:
                continue
            if message["parent_header"].get("msg_id") != message_id:
                continue
            content = message["content"]
            if message["msg_type"] == "stream":
                shown.append(content["text"])
            elif message["msg_type"] in ("display_data", "execute_result", "update_display_data"):
                shown.append(content["data"].get("text/plain", ""))
                if display := content.get("transient", {}).get("display_id"):
                    self.on_screen[display] = shown[-1]
            elif message["msg_type"] == "error":
                error = f"{content['ename']}: {content['evalue']}"
                self.traceback = "\n".join(content["traceback"])
            elif content.get("execution_state") == "idle":
                return "\n".join(shown), error
            if until and any(until in text for text in shown):
                return "\n".join(shown), None
        raise TimeoutError(f"the cell is still running after {timeout} s")

    def start_on_ranks(self, wait, folder, options=""):
        """Start a cell that waits, in line 3, on two ranks; return when both are there."""
        message = self.start(f"%%px {options}\nopen(f'{folder}/{{rank}}', 'w').close()\n{wait}")
        wait_until(lambda: len(os.listdir(folder)) == 2)
        return message

    def run(self, code, timeout=60):
        return self.outputs(self.start(code), timeout)

    def value(self, expression):
        """Return the value of an expression, by its repr."""
        shown, error = self.run(f"print(repr({expression}))")
        assert error is None, error
        return eval(shown)

    def close(self):
        self.client.stop_channels()
        with contextlib.suppress(Exception):
            self.manager.shutdown_kernel(now=True)


def ended_by_a_restart(folder):
    """The processes of ranks, all but the importer, which the next ranks have, too."""

    def forks(process):
        return "ranklab.start.importer_main" in process.cmdline()

    there = belonging_to(folder)
    return [one for one in there if not forks(one) or forks(one.parent())]


def all_ended(processes):
    return all(map(has_ended, processes))


def wait_until(condition, seconds=60):
    """Return as soon as it holds; fail after `seconds`, many times what it takes on quiet cores."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not so within {seconds} s"
        time.sleep(0.1)
