"""Chooses ports for the stores of torch.distributed."""

import socket


def kept():
    """A socket on a free port, open until the ranks have ended. Rank 0's store shares ports, so it can still listen there, while
    the kernel gives the port to no other process. Without the socket another process could take the port while rank 0 imports
    torch.
    """
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(("127.0.0.1", 0))
    return s
