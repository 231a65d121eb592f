"""Shared memory is found by those who may, is what it is said to be, and is gone when nobody has it open."""

from __future__ import annotations

import fcntl
import gc
import mmap
import os
from pathlib import Path

import pytest

from shared.control import Memory, Offer
from shared.memory import MemoryUnreachable, Names, Probe, Segment, attach, check_offer


def test_what_one_writes_the_other_reads() -> None:
    segment = Segment("epd-test-1", 8192)
    segment.buffer[:5] = b"hello"
    assert attach(segment.memory)[:5] == b"hello"
    there = attach(segment.memory, writable=True)
    there[8191] = 7
    assert segment.buffer[8191] == 7


def test_it_cannot_be_written_by_who_only_reads() -> None:
    segment = Segment("epd-test-1", 4096)
    with pytest.raises(TypeError):
        attach(segment.memory)[0] = 1


def test_nobody_can_cut_it_short_under_a_reader() -> None:
    segment = Segment("epd-test-1", 8192)
    for size in (4096, 16384):
        with pytest.raises(PermissionError):
            os.ftruncate(segment.memory.fd, size)


def test_closed_memory_cannot_be_opened_and_stays_with_those_who_have_it_open() -> None:
    segment = Segment("epd-test-1", 4096)
    segment.buffer[:2] = b"ab"
    opened = attach(segment.memory)
    memory = segment.memory
    segment.close()
    segment.close()
    with pytest.raises(MemoryUnreachable):
        attach(memory)
    assert opened[:2] == b"ab"


def test_memory_goes_with_its_object() -> None:
    memory = Segment("epd-test-1", 4096).memory
    gc.collect()
    with pytest.raises(MemoryUnreachable):
        attach(memory)


def test_a_descriptor_that_is_another_by_now_is_not_opened(tmp_path: Path) -> None:
    segment = Segment("epd-test-1", 4096)
    other = Segment("epd-test-2", 4096)
    file = os.open(tmp_path / "file", os.O_CREAT | os.O_RDWR)
    read, write = os.pipe()
    os.truncate(tmp_path / "file", 4096)
    try:
        for fd in (other.memory.fd, file, read, write, 2**30):
            with pytest.raises(MemoryUnreachable):
                attach(segment.memory.model_copy(update={"fd": fd}))
    finally:
        for fd in (file, read, write):
            os.close(fd)


@pytest.mark.parametrize("size", [4095, 4097, 8192])
def test_memory_of_another_size_is_refused(size: int) -> None:
    segment = Segment("epd-test-1", 4096)
    with pytest.raises(MemoryUnreachable, match="size"):
        attach(segment.memory.model_copy(update={"size": size}))


def test_memory_whose_size_could_change_is_refused() -> None:
    fd = os.memfd_create("epd-test-1", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 4096)
    memory = Memory(name="epd-test-1", pid=os.getpid(), fd=fd, size=4096)
    try:
        with pytest.raises(MemoryUnreachable, match="size"):
            attach(memory)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        attach(memory)
    finally:
        os.close(fd)


def test_memory_of_another_process_or_of_none_is_refused() -> None:
    segment = Segment("epd-test-1", 4096)
    for pid in (1, os.getppid(), 2**22 + 1):
        with pytest.raises(MemoryUnreachable):
            attach(segment.memory.model_copy(update={"pid": pid}))


def test_memory_of_another_user_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    segment = Segment("epd-test-1", 4096)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(MemoryUnreachable, match="another user"):
        attach(segment.memory)


@pytest.mark.parametrize("name", ["", "x", "epd-", "epd-../../x", "epd-a b", "epd-" + "x" * 101])
def test_a_name_that_is_none_of_ours_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        Memory(name=name, pid=1, fd=1, size=1)


def test_a_system_without_such_memory_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(OSError, match="no anonymous shared memory"):
        Segment("epd-test-1", 4096)


def test_names_are_never_given_twice() -> None:
    names = Names("encoder-1")
    assert names.next() != names.next()
    assert names.next().startswith("epd-encoder-1-")


def test_an_offer_proves_that_two_share_host_and_user() -> None:
    probe = Probe("language-1")
    offer = probe.offer(("GPU-1",))
    check_offer(offer)
    check_offer(Offer.model_validate_json(offer.model_dump_json()))
    assert offer.devices == ("GPU-1",)


def test_an_offer_that_only_looks_right_proves_nothing() -> None:
    probe, other = Probe("language-1"), Probe("language-2")
    wrong = probe.offer().model_copy(update={"nonce": other.offer().nonce})
    with pytest.raises(MemoryUnreachable, match="another process's"):
        check_offer(wrong)
    probe.close()
    with pytest.raises(MemoryUnreachable):
        check_offer(probe.offer())


def test_a_page_is_enough_for_a_probe() -> None:
    assert Probe("language-1").offer().probe.size == mmap.PAGESIZE
