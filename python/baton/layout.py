# SPDX-License-Identifier: Apache-2.0
"""Describes memory to the library: pages and their layout, state regions, the aux block.

The layout travels to the peer, so that pools of different shapes (another tensor-parallel size,
another order, another page size) can be mapped onto each other, or refused with a reason.
"""

from __future__ import annotations

import ctypes
import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from . import _abi
from ._buffer import Buffer, c_string, describe, uint32
from ._library import lib
from .errors import check


class DType(enum.IntEnum):
    """Element types. OPAQUE are bytes whose type is nobody's business but the engine's."""

    OPAQUE = 0
    U8 = 1
    I8 = 2
    F8_E4M3 = 3
    F8_E5M2 = 4
    F16 = 5
    BF16 = 6
    F32 = 7
    F64 = 8
    I32 = 9
    U32 = 10
    I64 = 11
    U64 = 12

    @classmethod
    def of(cls, value: Any) -> DType:
        """From a DType, a numpy or torch dtype, or a name such as ``"bfloat16"``."""
        if isinstance(value, cls):
            return value
        name = getattr(value, "name", None) or getattr(value, "__name__", None) or str(value)
        try:
            return _NAMES[name.removeprefix("torch.")]
        except KeyError:
            raise ValueError(f"dtype: {name} has no counterpart; use DType.OPAQUE") from None


_NAMES = {
    "opaque": DType.OPAQUE,
    "uint8": DType.U8,
    "int8": DType.I8,
    "float8_e4m3": DType.F8_E4M3,
    "float8_e4m3fn": DType.F8_E4M3,
    "float8_e5m2": DType.F8_E5M2,
    "float16": DType.F16,
    "bfloat16": DType.BF16,
    "float32": DType.F32,
    "float64": DType.F64,
    "int32": DType.I32,
    "uint32": DType.U32,
    "int64": DType.I64,
    "uint64": DType.U64,
}


class Memory(enum.IntEnum):
    """Where a region lies."""

    HOST = 0
    CUDA = 1


class Order(enum.IntEnum):
    """The usual orders of dimensions in a page, and how many bases each has."""

    LAYER_MAJOR = 0  #: 1 base:  [page][layer][k|v][head][token][dim]
    HEAD_MAJOR = 1  #: 1 base:  [page][head][layer][k|v][token][dim]
    PER_LAYER = 2  #: layers*kv bases: [page][head][token][dim]
    TOKEN_MAJOR = 3  #: layers*kv bases: [page][token][head][dim] (SGLang's pools)


class RegionKind(enum.IntEnum):
    """What a region holds."""

    KV = 0
    SLOT = 1  #: a recurrent state's slot
    WINDOW = 2  #: the pages of a sliding window
    SEQUENCE = 3  #: an index over the whole sequence


@dataclass
class Layout:
    """Where the bytes of (page, layer, k|v, head, token) are. See ``baton_layout`` in baton.h.

    Give ``bases`` as addresses, arrays, tensors or Pools: one, or (PER_LAYER, TOKEN_MAJOR) all
    K bases followed by all V bases. Strides come from ``order`` unless all five are given.
    ``base_lens`` is needed for raw addresses only if there is padding behind the last page.
    For pages without inner structure use ``Layout.opaque``.
    """

    bases: Sequence[Any]
    tokens_per_page: int = 0
    layers: int = 0
    heads: int = 0
    head_bytes: int = 0  #: of one head of one token: head_dim * size of an element
    pages: int = 0  #: 0: as many as the bases hold
    kv: int = 2  #: 1: one latent (MLA) or one state
    dtype: Any = DType.OPAQUE
    order: Order = Order.LAYER_MAJOR
    first_layer: int = 0  #: index in the whole model of the first layer held here
    first_head: int = 0  #: index in the whole model of the first head held here
    total_heads: int = 0  #: in the whole model; 0: those held here are all
    strides: tuple[int, int, int, int, int] | None = None  #: page, layer, k|v, head, token
    item_lens: Sequence[int] = ()  #: bytes of one page in each base; empty: from the shape
    base_lens: Sequence[int] = ()  #: bytes of each base; empty: from the arrays
    memory: Memory | None = None  #: None: from the arrays, else host

    @classmethod
    def opaque(
        cls,
        bases: Sequence[Any],
        base_lens: Sequence[int] = (),
        item_lens: Sequence[int] = (),
        pages: int = 0,
        memory: Memory | None = None,
    ) -> Layout:
        """Pages that are only bytes: every base is a layer of its own with its own item length.

        Arrays may leave out the lengths: the first dimension counts the pages.
        """
        return cls(
            bases, pages=pages, kv=1, item_lens=item_lens, base_lens=base_lens, memory=memory
        )

    @property
    def is_opaque(self) -> bool:
        return self.tokens_per_page == 0 and self.heads == 0 and self.head_bytes == 0


@dataclass
class Region:
    """State that goes with the last chunk, beside the KV cache. Peers match regions by name."""

    name: str
    kind: RegionKind
    layout: Layout


@dataclass
class AuxField:
    """One named, typed field of the aux block.

    ``offset`` None: behind the one before, aligned to its type.
    """

    name: str
    dtype: Any
    count: int = 1
    offset: int | None = None


@dataclass
class Aux:
    """The aux block: ``slots`` slots of ``slot_bytes``, one per request.

    ``buffer`` is an address, or an array of which the first dimension counts the slots; a
    numpy structured array also says its fields. Without fields the slot is one opaque field.
    """

    buffer: Any
    fields: Sequence[AuxField] = field(default_factory=tuple)
    slots: int = 0
    slot_bytes: int = 0

    @classmethod
    def of(cls, value: Any) -> Aux:
        """``value`` itself, or the description of an array (structured or plain)."""
        if isinstance(value, cls):
            return value
        return cls(value, fields=_structured_fields(value))


def _structured_fields(value: Any) -> tuple[AuxField, ...]:
    dtype = getattr(value, "dtype", None)
    names = getattr(dtype, "names", None)
    if not names or dtype is None:
        return ()
    fields = []
    for name in names:
        kind, offset = dtype.fields[name][:2]
        base, shape = kind.subdtype or (kind, ())
        fields.append(AuxField(name, DType.of(base), math.prod(shape), offset))
    return tuple(fields)


_DTYPE_BYTES = {
    DType.OPAQUE: 1,
    DType.U8: 1,
    DType.I8: 1,
    DType.F8_E4M3: 1,
    DType.F8_E5M2: 1,
    DType.F16: 2,
    DType.BF16: 2,
    DType.F32: 4,
    DType.I32: 4,
    DType.U32: 4,
    DType.F64: 8,
    DType.I64: 8,
    DType.U64: 8,
}


# ---- to C: each returns the C struct; what it points to is appended to `owners` ----------------


def layout_to_c(layout: Layout, what: str, owners: list[Any]) -> _abi.Layout:
    """Checks what only Python can know; the library checks the rest when the manager opens."""
    buffers = [describe(base, f"{what}: base {i}") for i, base in enumerate(layout.bases)]
    if not buffers:
        raise ValueError(f"{what}: no bases")
    out = _abi.Layout(struct_size=ctypes.sizeof(_abi.Layout))
    out.memory = _memory_of(layout, buffers, what)
    out.dtype = DType.of(layout.dtype)
    out.first_layer = uint32(layout.first_layer, f"{what}: first_layer")
    if layout.is_opaque:
        out.kv = 1
        out.layers = len(buffers)
        item_lens = _opaque_items(layout, buffers, what)
        strides = item_lens
    else:
        item_lens, strides = _shaped(layout, out, len(buffers), what)
    lens = _base_lens(layout, buffers, what)
    out.pages = _pages(layout, lens, item_lens, strides, what)
    lens = [n or out.pages * stride for n, stride in zip(lens, strides)]
    bases = (_abi.Base * len(buffers))(
        *(_abi.Base(b.address, n, item) for b, n, item in zip(buffers, lens, item_lens))
    )
    out.bases = ctypes.cast(bases, ctypes.POINTER(_abi.Base))
    out.base_count = len(buffers)
    owners += [bases, *buffers]
    return out


def _memory_of(layout: Layout, buffers: list[Buffer], what: str) -> int:
    if layout.memory is not None:
        return int(layout.memory)
    kinds = {buffer.memory for buffer in buffers}
    if len(kinds) > 1:
        raise ValueError(f"{what}: some bases are on the host and some on a GPU")
    return kinds.pop()


def _opaque_items(layout: Layout, buffers: list[Buffer], what: str) -> list[int]:
    if layout.item_lens:
        return _as_many(layout.item_lens, buffers, f"{what}: item lengths")
    for index, buffer in enumerate(buffers):
        if buffer.nbytes == 0:
            raise ValueError(f"{what}: base {index} is a bare address, its item length is needed")
    return [buffer.nbytes // buffer.items for buffer in buffers]


def _shaped(
    layout: Layout, out: _abi.Layout, base_count: int, what: str
) -> tuple[list[int], list[int]]:
    for name in ("tokens_per_page", "layers", "heads", "head_bytes", "kv", "first_head"):
        setattr(out, name, uint32(getattr(layout, name), f"{what}: {name}"))
    out.total_heads = uint32(layout.total_heads or layout.heads, f"{what}: total_heads")
    if layout.strides is None:
        out.pages = uint32(layout.pages or 1, f"{what}: pages")
        item = ctypes.c_uint64()
        code = lib.baton_layout_fill(ctypes.byref(out), int(layout.order), ctypes.byref(item))
        check(code, f"{what}: order {Order(layout.order).name} of this shape")
        items = [item.value] * base_count
    else:
        (out.page_stride, out.layer_stride, out.kv_stride, out.head_stride, out.token_stride) = (
            layout.strides
        )
        if min(layout.strides) < 0 or out.page_stride == 0:
            raise ValueError(f"{what}: strides {layout.strides} make no sense")
        items = [out.page_stride] * base_count
    if layout.item_lens:
        items = _as_many(layout.item_lens, items, f"{what}: item lengths")
    return items, [out.page_stride] * base_count


def _as_many(values: Sequence[int], like: Sequence[Any], what: str) -> list[int]:
    if len(values) != len(like):
        raise ValueError(f"{what}: {len(values)} given for {len(like)} bases")
    if min(values) <= 0:
        raise ValueError(f"{what}: must be greater than 0")
    return [int(value) for value in values]


def _base_lens(layout: Layout, buffers: list[Buffer], what: str) -> list[int]:
    if not layout.base_lens:
        return [buffer.nbytes for buffer in buffers]
    lens = _as_many(layout.base_lens, buffers, f"{what}: base lengths")
    for index, (length, buffer) in enumerate(zip(lens, buffers)):
        if buffer.nbytes and length > buffer.nbytes:
            raise ValueError(
                f"{what}: base {index} is said to have {length} bytes, its array has {buffer.nbytes}"
            )
    return lens


def _pages(layout: Layout, lens: list[int], items: list[int], strides: list[int], what: str) -> int:
    if layout.pages:
        return uint32(layout.pages, f"{what}: pages")
    if 0 in lens:
        raise ValueError(f"{what}: bare addresses need their lengths, or the number of pages")
    # The last page needs only its own bytes, not the padding up to the next.
    pages = min(
        (n - item) // stride + 1 if n >= item else 0
        for n, item, stride in zip(lens, items, strides)
    )
    if pages < 1:
        raise ValueError(f"{what}: a base is shorter than one page")
    return uint32(pages, f"{what}: pages")


def region_to_c(region: Region, what: str, owners: list[Any]) -> _abi.Region:
    out = _abi.Region(struct_size=ctypes.sizeof(_abi.Region), kind=int(region.kind))
    out.name = c_string(region.name, f"{what}: name")
    out.layout = layout_to_c(region.layout, f"{what} {region.name!r}", owners)
    return out


def aux_to_c(aux: Aux, owners: list[Any]) -> _abi.Aux:
    buffer = describe(aux.buffer, "aux")
    if buffer.memory != Memory.HOST:
        raise ValueError("aux: the aux block must be in host memory")
    slots = uint32(aux.slots or buffer.items, "aux: slots")
    if slots == 0 or not (aux.slot_bytes or buffer.nbytes):
        raise ValueError("aux: a bare address needs slots and slot_bytes")
    slot_bytes = aux.slot_bytes or buffer.nbytes // slots
    if buffer.nbytes and slots * slot_bytes > buffer.nbytes:
        raise ValueError(
            f"aux: {slots} slots of {slot_bytes} bytes do not fit in {buffer.nbytes} bytes"
        )
    out = _abi.Aux(struct_size=ctypes.sizeof(_abi.Aux), slots=slots, slot_bytes=slot_bytes)
    out.address = buffer.address
    fields = _aux_fields(aux.fields)
    out.fields = ctypes.cast(fields, ctypes.POINTER(_abi.AuxField)) if len(fields) else None
    out.field_count = len(fields)
    owners += [buffer, fields]
    return out


def _aux_fields(fields: Sequence[AuxField]) -> ctypes.Array[_abi.AuxField]:
    out = (_abi.AuxField * len(fields))()
    offset = 0
    for target, source in zip(out, fields):
        dtype = DType.of(source.dtype)
        size = _DTYPE_BYTES[dtype]
        offset = -(-offset // size) * size if source.offset is None else source.offset
        target.name = c_string(source.name, "aux: field name")
        target.dtype = dtype
        target.count = uint32(source.count, f"aux: count of {source.name!r}")
        target.offset = offset
        offset += size * target.count
    return out
