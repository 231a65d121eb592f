"""Exact sums over the blocks of a tensor's bytes, computed where the tensor is: what the content hash is made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from shared.errors import InternalError
from shared.telemetry import get_logger

BLOCK = 4096
_CUDA_ROWS = 17  # CUDA's integer product wants more than 16 rows
_CUDA_ALIGNMENT = 16  # and whole words
_FLOAT_ROWS = 256  # a mebibyte of blocks at a time becomes floats

_log = get_logger("identity")

Product: TypeAlias = Callable[[Tensor], Tensor]
"""``(n, 4096)`` int8 to ``(n, columns)`` int32."""


class BlockSums:
    """Multiplies blocks of 4096 signed bytes by one ``(4096, columns)`` int8 matrix, on any device.

    A sum is at most 4096 * 128 * 128 = 2**26 in size, so int32 holds it, and every device agrees on every bit. That is tested
    when a device is used first, since not every integer product is exact; one that is not gives way to the next. May be used
    from many threads.
    """

    def __init__(self, matrix: Tensor) -> None:
        self._matrix = matrix
        self._products: dict[torch.device, Product] = {}

    def of(self, tensor: Tensor) -> Tensor:
        """Sums ``(blocks, columns)`` int32 of a tensor's bytes, on its device; the last block is filled up with zeros.

        A contiguous tensor is not copied; another one is, on its own device.

        Raises:
            InternalError: the tensor has no plain bytes: sparse, quantized, nested, or without data.
        """
        flat = bytes_of(tensor)
        product = self._products.get(tensor.device)
        if product is None:
            product = self._products[tensor.device] = exact_product(self._matrix, tensor.device)
        short = flat.numel() % BLOCK
        whole, tail = torch.split(flat, [flat.numel() - short, short])
        sums = [product(whole.view(-1, BLOCK))] if whole.numel() else []
        if short:
            sums.append(product(torch.nn.functional.pad(tail, (0, BLOCK - short)).view(1, BLOCK)))
        return torch.cat(sums) if sums else flat.new_empty((0, self._matrix.shape[1]), dtype=torch.int32)


def bytes_of(tensor: Tensor) -> Tensor:
    """The bytes of a tensor's elements in order, as one row of int8; a view where they lie like that in memory.

    Raises:
        InternalError: it has no plain bytes.
    """
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested or tensor.is_meta:
        raise InternalError(f"A tensor of layout {tensor.layout} and type {tensor.dtype} on {tensor.device} cannot be hashed.")
    plain = tensor.detach().resolve_conj().resolve_neg()
    if plain.dtype.itemsize == 1:
        plain = plain.view(torch.int8)  # bytes are copied as they are; booleans and types without arithmetic would not be
    flat = plain.contiguous().reshape(-1).view(torch.int8)
    return flat.clone() if flat.is_cuda and flat.data_ptr() % _CUDA_ALIGNMENT else flat


def exact_product(matrix: Tensor, device: torch.device) -> Product:
    """The fastest product with a ``(4096, columns)`` int8 matrix, which is on the CPU, that is exact on a device."""
    for make in (_whole, _halves):
        product = make(matrix.to(device))
        if _is_exact(product, matrix, device):
            return product
        _log.info("integer product is not exact here; hashing takes another", device=str(device), product=make.__name__)
    return _floats(matrix.to(device))


def _is_exact(product: Product, matrix: Tensor, device: torch.device) -> bool:
    """Whether a product is right on the bytes that strain it most, for few blocks and for many."""
    least, most = torch.iinfo(torch.int8).min, torch.iinfo(torch.int8).max
    first = matrix[:, 0]
    rows = [torch.full_like(first, least), torch.full_like(first, most), first]
    rows += [torch.where(first < 0, least, most), torch.where(first < 0, most, least)]
    blocks = torch.stack(rows * 8).to(torch.int8)
    expected = blocks.long() @ matrix.long()
    try:
        results = [(product(blocks[:count].to(device)).cpu(), expected[:count]) for count in (1, 5, 40)]
    except RuntimeError:  # the device has no such product
        return False
    return all(torch.equal(result.long(), wanted) for result, wanted in results)


def _int_mm(blocks: Tensor, matrix: Tensor) -> Tensor:
    rows = blocks.shape[0]
    if blocks.is_cuda and rows < _CUDA_ROWS:
        blocks = torch.nn.functional.pad(blocks, (0, 0, 0, _CUDA_ROWS - rows))
    return torch._int_mm(blocks, matrix).narrow(0, 0, rows)


def _whole(matrix: Tensor) -> Product:
    """One integer product."""
    return lambda blocks: _int_mm(blocks, matrix)


def _halves(matrix: Tensor) -> Product:
    """One integer product with the matrix taken apart as ``2 * high + low``.

    x86 processors without VNNI add each two products of an unsigned byte and a signed one in 16 bits, which saturate. With the
    seven bits of ``high`` they cannot: 2 * 255 * 64 < 2**15.
    """
    parts = torch.cat([matrix >> 1, matrix & 1], dim=1)

    def product(blocks: Tensor) -> Tensor:
        high, low = _int_mm(blocks, parts).chunk(2, dim=1)
        return 2 * high + low

    return product


def _floats(matrix: Tensor) -> Product:
    """Four products of float32 matrices. None of their sums is larger than 1024 * 128 * 128 = 2**24, up to which float32 has
    every integer, and every int8 is one of any type that a float32 product may be computed in."""
    quarters = matrix.view(4, BLOCK // 4, -1).float()

    def product(blocks: Tensor) -> Tensor:
        some = (rows.view(-1, 4, BLOCK // 4).transpose(0, 1).float() @ quarters for rows in torch.split(blocks, _FLOAT_ROWS))
        return torch.cat([sums.int().sum(0, dtype=torch.int32) for sums in some])

    return product
