#!/usr/bin/env python3
"""Brings up the loopback interface if it is down, as on a small machine without a network: without any interface
neither mpirun nor NCCL starts. Needs root if the interface is down."""
import fcntl
import socket
import struct
import sys

GET_FLAGS, SET_FLAGS, UP = 0x8913, 0x8914, 1  # SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP of Linux
try:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = fcntl.ioctl(any_socket, GET_FLAGS, struct.pack("16sh14x", b"lo", 0))
        flags = struct.unpack("16sh14x", request)[1]
        if not flags & UP:
            fcntl.ioctl(any_socket, SET_FLAGS, struct.pack("16sh14x", b"lo", flags | UP))
except OSError as error:
    sys.exit(f"note: the loopback interface cannot be brought up: {error}")
