"""ipyparallel's engine and nanny, for engines whose parent is the fork server.

A stock engine starts one more Python, its nanny. Here the fork server is the nanny of all engines.
"""

import pickle

import zmq
from ipyparallel import util
from ipyparallel.engine.app import IPEngine
from ipyparallel.engine.nanny import KernelNanny
from traitlets import Any
from traitlets.config import Config
from zmq.eventloop.zmqstream import ZMQStream

LINGER = 500  # milliseconds for what is still to be sent when a socket closes


class ForkedEngine(IPEngine):
    """An engine that asks its parent, over the socket `server`, to be its nanny.

    Without it: engines are not forked, and four of them start in ten seconds in place of three.
    """

    server = Any()

    def start_nanny(self, control_url):
        """Return (the address that this engine's control channel connects to, what to keep)."""
        config = Config()
        config.Session = self.config.Session
        said = {
            "engine_id": self.id,
            "identity": self.bident,
            "control_url": control_url,
            "registration_url": self.registration_url,
            "curve_serverkey": self.curve_serverkey,
            "curve_secretkey": self.curve_secretkey,
            "curve_publickey": self.curve_publickey,
            "config": config,
        }
        self.server.sendall(pickle.dumps(said))
        address = self.server.recv(1000).decode()
        if not address:
            raise RuntimeError("the fork server, parent of this engine, is gone")
        return address, self.server


class Nanny(KernelNanny):
    """The nanny of one engine, in the process that forked it and sees it end.

    Without it: nobody tells of a rank's death, and no signal gets to a rank that is stuck.
    """

    def listen(self, address):
        """Connect to the controller, and listen for the engine; return at which address."""
        self.context = zmq.Context.instance()
        # Connected by the time it is needed: however long the controller is busy then, the news of
        # the engine's end gets there.
        self.hub = self.context.socket(zmq.DEALER)
        util.connect(self.hub, self.registration_url, **self._keys())
        self.control_socket = self.context.socket(zmq.ROUTER)
        self.control_socket.identity = self.identity
        util.connect(self.control_socket, self.control_url, **self._keys())
        self.control_stream = ZMQStream(self.control_socket)
        self.control_stream.on_recv_stream(self.dispatch_control)
        self.parent_socket = self.context.socket(zmq.DEALER)
        if self.curve_secretkey:
            self.parent_socket.CURVE_SERVER = 1
            self.parent_socket.CURVE_SECRETKEY = self.curve_secretkey
        self.parent_socket.bind(address)
        self.parent_stream = ZMQStream(self.parent_socket)
        self.parent_stream.on_recv_stream(self.dispatch_parent)
        return self.parent_socket.LAST_ENDPOINT.decode().rstrip("\0")

    def notify_exit(self):
        """Tell the hub that the engine has ended."""
        self.session.send(self.hub, "unregistration_request", content={"id": self.engine_id})

    def close(self):
        """Close the sockets; what is still to be sent goes out first."""
        self.hub.close(linger=LINGER)  # no longer: the controller may have ended, too
        self.control_stream.close(linger=LINGER)
        self.parent_stream.close(linger=0)

    def _keys(self):
        return {
            "curve_serverkey": self.curve_serverkey,
            "curve_secretkey": self.curve_secretkey,
            "curve_publickey": self.curve_publickey,
        }
