"""Ports for the stores of torch.distributed."""

import socket


def kept():
    """A socket on a free port, open until the ranks have ended: rank 0's store, which shares ports, can listen there, and nobody else is given it.

    A port that is free only when it is chosen may be another's by the time that rank 0 has imported torch.
    """
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(("127.0.0.1", 0))
    return s
