#!/usr/bin/env python3
"""A cable between two bridges that delays each frame: relay.py SECONDS DEVICE DEVICE. Makes the two
TAP devices in the network namespace in which it runs, says "ready", and carries frames until it is
killed.
"""
import collections
import fcntl
import os
import select
import struct
import sys
import time

TUNSETIFF = 0x400454CA
IFF_TAP, IFF_NO_PI = 0x0002, 0x1000
FRAME_BYTES_MAX = 65536
WAITING_MAX = 20_000  # frames on the way in one direction; further ones are lost


def open_tap(name):
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return fd


def read_all(fd, queue, due):
    while len(queue) < WAITING_MAX:
        try:
            queue.append((due, os.read(fd, FRAME_BYTES_MAX)))
        except BlockingIOError:
            return
        except OSError:
            return  # the device is not up yet


def main():
    delay_s = float(sys.argv[1])
    taps = [open_tap(name) for name in sys.argv[2:4]]
    print("ready", flush=True)
    onward = {taps[0]: taps[1], taps[1]: taps[0]}
    queues = {tap: collections.deque() for tap in taps}
    poller = select.epoll()
    for tap in taps:
        poller.register(tap, select.EPOLLIN)
    while True:
        now = time.monotonic()
        heads = [queue[0][0] for queue in queues.values() if queue]
        timeout = max(0.0, min(heads) - now) if heads else 1.0
        for tap, _ in poller.poll(timeout):
            read_all(tap, queues[tap], time.monotonic() + delay_s)
        now = time.monotonic()
        for tap, queue in queues.items():
            while queue and queue[0][0] <= now:
                try:
                    os.write(onward[tap], queue.popleft()[1])
                except OSError:
                    break  # not up; the frame is lost, as on a cable that is pulled


if __name__ == "__main__":
    main()
