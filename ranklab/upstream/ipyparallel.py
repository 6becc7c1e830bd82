"""What is used of ipyparallel without being promised: its results, its client, its processes.

(Of its engine and its nanny, see start/forked_engine.py, which says what it overrides.)
"""

import contextlib
import json
import uuid
from pathlib import Path

import zmq
from ipyparallel import AsyncResult, RemoteError
from ipyparallel.cluster.launcher import LocalEngineLauncher
from ipyparallel.util import connect, disambiguate_url
from IPython.display import publish_display_data
from jupyter_client.session import Session

UNREADABLE = "Unreadable"  # stands where the name of a rank's error stands


# Results


def asked(result):
    """Return the ranks that were asked, in order.

    Without it: nothing comes from the ranks.
    """
    return list(result._targets)


def answers(result):
    """Return [(rank, its value or its exception), ...] of a result that is there.

    Without it: `ranks["x"]` and `ranks.run` fail.
    """
    values = result.get(return_exceptions=True)
    return list(zip(result._targets, [values] if result._single_result else values))


def parts(result):
    """Return [(rank, the part of the result that comes from it), ...].

    Not through the cache that ipyparallel has for it: that keeps the values of the last 128.

    Without it: a cell in which ranks are stuck, or died, does not end in an error.
    """
    split = type(result).split.__wrapped__(result)
    return list(zip(result._targets, split, strict=True))


def answer(part):
    """Return the value or the exception that came from one rank.

    Without it: a cell in which ranks are stuck, or died, does not end in an error.
    """
    value = part.get(return_exceptions=True)
    return value if part._single_result else value[0]  # the only part of a list of one


def ended(ranks, result):
    """Return {rank: "finished", "failed" or "died"} for those that are through with `result`.

    Without it: a cell in which ranks are stuck, or died, does not end in an error.
    """
    gone = ranks.gone()
    known = dict.fromkeys(gone, "died")
    for rank, part in parts(result):
        if rank not in gone and part.ready():
            known[rank] = "failed" if isinstance(answer(part), RemoteError) else "finished"
    return known


def reply_to_cell(answer):
    """Return the whole reply of a rank to a `%%px` cell, with what the lab added to it; else {}.

    Without it: collectives that do not match, and are not noticed by Gloo, give wrong results.
    """
    return getattr(answer, "_content", {})


def forget(ranks, result):
    """Drop what ipyparallel keeps of a result for good, large values and long errors included.

    Without it: the kernel's memory grows with all that was ever pulled.
    """
    # A rank may still work on it, and the ranks may be closed by now.
    with contextlib.suppress(RuntimeError, KeyError, TimeoutError, AttributeError):
        result.get(0, return_exceptions=True)
        ranks.client.purge_local_results(result)
    for cached in (AsyncResult.split, AsyncResult.__len__, AsyncResult._count_chunks):
        cached.cache_clear()  # each has the last 128 in it


def call_it(result, name):
    """Have a result shown by this name: `<AsyncResult(%px): pending>`.

    Without it: `%%px --noblock` shows another name than ipyparallel's own.
    """
    result._fname = name


def wait_for_output(result):
    """Wait a moment for what the ranks printed: its end may come after the result.

    Of a stuck rank, there is none.

    Without it: `ranks.run` and `%%px` lose the end of what the ranks print.
    """
    result.wait_for_output(1 if result.ready() else 0.1)


def display(result, groupby):
    """Show what the ranks printed, as far as it has come; some may be stuck.

    Without it: `ranks.run` and `%%px --no-stream` show nothing.
    """
    finished = [part for _, part in parts(result) if part.ready() and part.wait_for_output(0)]
    if not finished:
        return
    joined = AsyncResult.join(*finished)
    if groupby != "type":  # another order than that of the ranks is wanted
        joined.display_outputs(groupby)
        return
    known = {rank: child.output.metadata for rank, child in _children(joined)}
    values = {rank: value for rank, one in known.items() if (value := _text_of(one.execute_result))}
    if text := _in_rank_order(joined, values):
        print(text)
    for rank, one in known.items():
        rich = [one.execute_result] if one.execute_result and rank not in values else []
        for output in [*one.outputs, *rich]:
            joined._republish_displaypub(output, rank)


def streamed(result):
    """Show output as it comes, in rank order, but leave the errors to the one message at the end.

    Text is one display, which is written anew with each piece of it that comes.

    Without it: `%%px` shows each rank's error by itself, and what ranks print as they are fast.
    """
    show = result._iopub_streaming_output_callback
    written, values = {"transient": {"display_id": uuid.uuid4().hex}, "update": False}, {}

    def show_output(rank, future, message):
        kind, content = message["header"]["msg_type"], message["content"]
        if kind == "execute_result" and (value := _text_of(content)):
            values[rank] = value
        if kind == "stream" or (kind == "execute_result" and rank in values):
            publish_display_data({"text/plain": _in_rank_order(result, values)}, **written)
            written["update"] = True
        elif kind != "error":
            show(rank, future, message)

    result._iopub_streaming_output_callback = show_output
    return result.stream_output()


def _in_rank_order(result, values):
    """Return what the ranks printed so far, and below it the last expressions of their cells."""
    told = [
        (f"[{name}:{rank}]", child.output.metadata[name].rstrip())
        for name in ("stdout", "stderr")
        for rank, child in _children(result)
    ]
    told += [(f"[output:{rank}]", values[rank]) for rank in result._targets if rank in values]
    lines = [(source, "\n" if "\n" in text else " ", text) for source, text in told if text]
    return "\n".join("".join(parts) for parts in lines)


def _children(result):
    """Return [(rank, the future that holds what comes from it), ...]."""
    return list(zip(result._targets, result._children))


def _text_of(value):
    """Return the last expression of a cell as text, unless it has a richer form; else None."""
    data = value["data"] if value else {}
    return data["text/plain"] if set(data) == {"text/plain"} else None


# The client


def keep_unreadable(client):
    """Have `client` report what cannot be rebuilt here, such as an object of a rank's own class.

    Left alone, it logs the error in a thread of its own, and who waits for the answer waits on.

    Without it: who pulls such an object waits forever.
    """
    read = client._queue_handlers["apply_reply"]

    def handle(message):
        try:
            read(message)
        except Exception as error:
            request = message["parent_header"]["msg_id"]
            said = RemoteError(UNREADABLE, f"{type(error).__name__}: {error}", "")
            client.results[request] = said
            client._futures[request].set_result(said)

    client._queue_handlers["apply_reply"] = handle


def when_one_is_gone(client, act):
    """Have `act()` called as soon as the hub tells that an engine has ended, in another thread.

    Without it: ranks that wait for a dead one do so until the timeout, after `%%px --noblock`.
    """
    forget = client._notification_handlers["unregistration_notification"]

    def handle(message):
        forget(message)
        act()

    client._notification_handlers["unregistration_notification"] = handle


def ask(client, request, content, ranks):
    """Send a request to the control threads; return {rank: the future of its reply}.

    Without it: `ranks.where()` and the doctor know nothing of any rank.
    """
    engines = dict(client._engines)  # another thread takes out those that end
    return {
        rank: client._send(
            client._control_stream, request, content=content, ident=engines[rank].encode()
        )
        for rank in ranks
        if rank in engines
    }


def wait_no_more(client, future):
    """Wait no more for a reply that may never come.

    Without it: what was asked of a rank that is stuck in C is kept for good.
    """
    client._futures.pop(future.msg_id, None)


def give_up(client, results):
    """Have the client wait no more for what engines did not get: they will not answer.

    Without it: `client.wait()` waits forever, where an engine came up late.
    """
    lost = {request for result in results for request in result.msg_ids}
    for waited_for in (client.outstanding, *client._outstanding_dict.values()):
        waited_for.difference_update(lost)


# The processes


def let_go(cluster):
    """End the thread in which ipyparallel, in a notebook, starts and stops the processes.

    Without it: it lives as long as the kernel, and goes on with a start that was interrupted.
    """
    loop = vars(cluster).get("_thread_loop")
    if loop is None or not cluster._async_thread.is_alive():
        return
    loop.add_callback(loop.stop)
    cluster._async_thread.join(5)
    if not cluster._async_thread.is_alive():
        loop.close(all_fds=True)


def exit_code(engine):
    """Return what a stock engine, by its launcher, ended with; negative: by which signal.

    The system tells it once: to a thread of ipyparallel's, which waits for it.

    Without it: with `engines="local"`, an error does not say what a rank died of.
    """
    engine._wait_thread.join(1)
    return engine.process.wait(0)


def unregister(engines, connection_file):
    """Tell the hub that the engines with these ids have ended.

    Without it: where the fork server is killed, nobody tells of its ranks' death.
    """
    info = json.loads(Path(connection_file).read_text())
    session = Session(
        key=info["key"].encode(),
        signature_scheme=info["signature_scheme"],
        packer=info["pack"],
        unpacker=info["unpack"],
    )
    server_key = (info.get("curve_serverkey") or "").encode() or None
    with zmq.Context() as context, context.socket(zmq.DEALER) as hub:
        hub.LINGER = 1000  # milliseconds
        url = disambiguate_url(f"{info['interface']}:{info['registration']}", info["location"])
        connect(hub, url, curve_serverkey=server_key)
        for engine in engines:
            session.send(hub, "unregistration_request", content={"id": engine})


class OneProcessLauncher(LocalEngineLauncher):
    """A launcher that waits for one process, with hooks of names of its own.

    Without it: engines are not forked, and four of them start in ten seconds in place of three.
    """

    def watch(self):
        """Wait for the end of `self.process`, in a thread."""
        self._start_waiting()

    def has_ended(self):
        """Do, in that thread, what there is to do once the process has ended."""

    def _wait(self):
        super()._wait()
        self.has_ended()

    def _log_output(self, stop_data=None):
        pass  # the files stay until the set is removed: what an engine died of is read there
