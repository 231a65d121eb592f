"""Threads that compute for long: who gets the cores when they are scarce, and how many."""

from __future__ import annotations

import contextlib
import os
import threading

import torch

# On Linux a third of the share of a thread that has not been nice.
_NICE = 5


def begin_computing() -> None:
    """To be called first in a thread that computes for long.

    Others go first, above all event loops, which only need the cores for moments; Linux keeps this by thread, and for those
    that it starts. And torch's operations take as many threads as torch was told, all of them: OpenMP keeps that number by
    thread too, and torch passes it on when it is asked, but not before oneDNN's products, which would start a team as large as
    the machine and wait for its slowest.
    """
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
    torch.get_num_threads()
