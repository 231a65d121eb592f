"""Threads that compute take no more cores than they were told."""

from __future__ import annotations

import subprocess
import sys

from tests.processes import ROOT

HASHES = """
import os, torch
from concurrent.futures import ThreadPoolExecutor
from shared.identity import ContentHasher
from shared.priority import begin_computing

torch.set_num_threads(1)
hasher, features = ContentHasher(bytes(32)), {"pixel_values": torch.zeros(64 * 64 * 3)}
hasher.hash(features)
before = len(os.listdir("/proc/self/task"))
with ThreadPoolExecutor(1, initializer=begin_computing) as thread:
    thread.submit(hasher.hash, features).result()
    print(len(os.listdir("/proc/self/task")) - before)
"""


def test_hashing_in_a_thread_starts_no_others() -> None:
    ran = subprocess.run([sys.executable, "-c", HASHES], cwd=ROOT, check=True, capture_output=True, text=True, timeout=60)
    assert int(ran.stdout) == 1
