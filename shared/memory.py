"""Memory that processes of one user on one host share: anonymous, so that nothing of it is left when its owners have died.

A segment is a ``memfd`` (Linux). Its owner tells others where to find it (``shared.control.Memory``), and they open it through
``/proc``, which the kernel grants to processes of the same user in the same process namespace only. There is no name in any
file system that a crash could leave behind: the memory goes with the last process that has it open.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
from itertools import count

from shared.control import Memory, Offer

PROBE_BYTES = 32
# Where a system has none of these it has no such memory either, and embeddings go as frames.
_SEALS = sum(getattr(fcntl, f"F_SEAL_{what}", 0) for what in ("SHRINK", "GROW", "SEAL"))
# All pages at once, rather than one page fault for each when it is first touched.
_MAP = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)


class MemoryUnreachable(Exception):
    """A segment cannot be opened: another host, user or process namespace, or its owner has let go of it."""


class Segment:
    """Shared memory of this process: ``buffer`` is all of it, and ``memory`` says where others find it.

    All pages are there from the start, and its size is fixed for good, so that neither writing nor reading it can fail. Whoever
    makes segments bounds their sum: the system gives what there is, and more.

    Raises:
        OSError: this system has no such thing.
    """

    def __init__(self, name: str, size: int) -> None:
        self._fd: int | None = None
        if not hasattr(os, "memfd_create"):
            raise OSError("this system has no anonymous shared memory")
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.posix_fallocate(fd, 0, size)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
            self.buffer = mmap.mmap(fd, size, flags=_MAP)
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd
        self.memory = Memory(name=name, pid=os.getpid(), fd=fd, size=size)

    def close(self) -> None:
        """Lets go of it: nobody can open it any more; whoever has keeps it."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __del__(self) -> None:
        self.close()


class Names:
    """Names of segments, none of which is ever given twice."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._numbers = count(1)

    def next(self) -> str:
        return f"epd-{self._owner}-{next(self._numbers)}"


def attach(memory: Memory, writable: bool = False) -> mmap.mmap:
    """The segment of another process (or of this one), mapped.

    Raises:
        MemoryUnreachable: it is not there, or not what it is said to be.
    """
    path = f"/proc/{memory.pid}/fd/{memory.fd}"
    try:
        if os.stat(f"/proc/{memory.pid}").st_uid != os.geteuid():
            raise MemoryUnreachable("it belongs to another user")
        # Before it is opened: opening what else may be there by now could have effects.
        if not is_there(memory):
            raise MemoryUnreachable("it is not there, or there no longer")
        fd = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        try:
            sealed = fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS == _SEALS
            if not sealed or os.fstat(fd).st_size != memory.size:
                raise MemoryUnreachable("it is not of the size that it is said to be")
            return mmap.mmap(fd, memory.size, flags=_MAP, prot=mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0))
        finally:
            os.close(fd)
    except (OSError, ValueError) as error:
        raise MemoryUnreachable(str(error)) from error


def is_there(memory: Memory) -> bool:
    """Whether the owner of a segment still has it."""
    try:
        return os.readlink(f"/proc/{memory.pid}/fd/{memory.fd}") == f"/memfd:{memory.name} (deleted)"
    except OSError:
        return False


class Probe:
    """What proves to others that they share host and user with this process: they can read a secret in its memory."""

    def __init__(self, owner: str) -> None:
        nonce = secrets.token_bytes(PROBE_BYTES)
        self._segment = Segment(f"epd-{owner}-probe", mmap.PAGESIZE)
        self._segment.buffer[:PROBE_BYTES] = nonce
        self._nonce = nonce

    def offer(self, devices: tuple[str, ...] = ()) -> Offer:
        """What to tell others; ``devices`` are the UUIDs of GPUs whose memory this process can open."""
        return Offer(probe=self._segment.memory, nonce=self._nonce.hex(), devices=devices)

    def close(self) -> None:
        self._segment.close()


def check_offer(offer: Offer) -> None:
    """Returns where the process that made the offer shares host and user with this one.

    Raises:
        MemoryUnreachable: it does not, with the reason.
    """
    if not secrets.compare_digest(attach(offer.probe)[:PROBE_BYTES], bytes.fromhex(offer.nonce)):
        raise MemoryUnreachable("it is another process's")
