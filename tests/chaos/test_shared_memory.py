"""However an encoder dies with memory lent, nothing of it is left."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.processes import ROOT

DEATHS = 1000
SIZE = 2**20

# A server of deaths: each child has real carriers make a segment, write a message's tensors into it and pack its header; then
# it is killed, with the message unsent. The child sleeps where it says that it is about to send; the parent kills it there.
_VICTIMS = f"""
import asyncio, os, signal, sys
import torch
from services.encoder.faults.base import Outgoing
from services.encoder.threads import FairThreads
from services.encoder.transport.carriers import Carriers
from shared.control import Offer
from shared.memory import Probe
from shared.residency import Residency
from shared.telemetry import Metrics
from shared.wire import Header

class Settings:
    max_shared_bytes = 2**26

probe = Probe("language-1")
offer = probe.offer()
header = Header(request_id="r", attempt=0, item=0, num_items=1, modality="image", content_hash="0" * 32, num_tokens=1,
                model_fingerprint="f", encoder_id="e")
tensors = {{"embeds": torch.ones({SIZE} // 4)}}

async def victim(number, out):
    cpu = torch.device("cpu")
    carriers = Carriers(Settings(), Residency("shm"), f"encoder-{{number}}", cpu, FairThreads(1), Metrics())
    assert carriers.agree("tcp://127.0.0.1:1", offer) == "shm"
    parcel = await carriers.pack("tcp://127.0.0.1:1", Outgoing(header, tensors), 5)
    assert len(parcel.frames) == 1
    os.write(out, b"x")
    await asyncio.sleep(60)

for number in range({DEATHS}):
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        asyncio.run(victim(number, write))
    os.close(write)
    assert os.read(read, 1) == b"x"
    os.kill(child, signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    os.close(read)
print("done")
"""


def shared_bytes() -> int:
    """All shared memory of this machine."""
    found = re.search(r"^Shmem:\s+(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def test_an_encoder_killed_a_thousand_times_between_making_and_sending_leaves_nothing() -> None:
    named, shared = set(os.listdir("/dev/shm")), shared_bytes()
    victims = subprocess.run([sys.executable, "-c", _VICTIMS], cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert victims.stdout == "done\n", victims.stderr
    assert {name for name in set(os.listdir("/dev/shm")) - named if "epd" in name} == set()
    # A leak of one segment in ten would be 400 MB.
    assert shared_bytes() - shared < 100 * 2**20
