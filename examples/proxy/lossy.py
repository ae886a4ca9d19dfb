#!/usr/bin/env python3
"""A TCP relay that loses answers: it passes requests on, and closes the first connections when the answer comes.

Usage: lossy.py TARGET_PORT LOSSES. It prints its own port, then relays until it is killed.
"""

import contextlib
import socket
import sys
import threading


def relay(client, target, answer_is_lost):
    """Passes on what both sides send, until one closes."""
    server = socket.create_connection(("127.0.0.1", target))

    def requests():
        with contextlib.suppress(OSError):  # either side may have closed
            while data := client.recv(65536):
                server.sendall(data)
            server.shutdown(socket.SHUT_WR)

    threading.Thread(target=requests, daemon=True).start()
    with contextlib.suppress(OSError):
        while data := server.recv(65536):
            if answer_is_lost:
                break
            client.sendall(data)
    for connection in (client, server):
        with contextlib.suppress(OSError):  # the other thread may still read: only this ends the connection
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()


def main():
    target, losses = int(sys.argv[1]), int(sys.argv[2])
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    while True:
        client, _ = listener.accept()
        threading.Thread(target=relay, args=(client, target, losses > 0), daemon=True).start()
        losses -= 1


if __name__ == "__main__":
    main()
