"""What a run was measured on."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

FLAGS = ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8", "sha_ni")
PACKAGES = ("torch", "transformers", "httpx", "uvicorn")


def _field(text: str, name: str) -> str:
    """The first value of ``name`` in a file of ``name: value`` lines."""
    values = (line.partition(":")[2].strip() for line in text.splitlines() if line.partition(":")[0].strip() == name)
    return next(values, "")


def load_average() -> float:
    """Processes that wanted a core, averaged over the last minute."""
    return os.getloadavg()[0]


def commit() -> str:
    """The commit that is checked out, with a plus where the working tree differs from it."""
    try:
        head = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
        changed = subprocess.run(["git", "status", "--porcelain"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+" if changed.strip() else "")


def describe() -> list[str]:
    """One fact a line."""
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    memory = Path("/proc/meminfo").read_text() if Path("/proc/meminfo").exists() else ""
    has = set(_field(info, "flags").split())
    kilobytes = _field(memory, "MemTotal").split()
    present = [flag for flag in FLAGS if flag in has]
    absent = [flag for flag in FLAGS if flag not in has]
    return [
        f"processor: {_field(info, 'model name') or platform.processor()}, {os.cpu_count()} cores",
        f"flags: {', '.join(present) or 'none of interest'} (not: {', '.join(absent) or 'none'})",
        f"memory: {int(kilobytes[0]) / 2**20:.0f} GiB" if kilobytes else "memory: unknown",
        f"system: {platform.system()} {platform.release()}, Python {platform.python_version()}",
        "packages: " + ", ".join(f"{name} {version(name)}" for name in PACKAGES),
    ]
