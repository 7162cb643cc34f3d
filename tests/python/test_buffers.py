# SPDX-License-Identifier: Apache-2.0
"""What is accepted where a pointer or a list of pages is expected, and what is refused how."""

from __future__ import annotations

import array
import ctypes
import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import baton
from baton import _buffer
from baton.layout import Layout, aux_to_c, layout_to_c


def values(listed: _buffer.Indices) -> list[int]:
    if listed.address is None:
        return []
    return list((ctypes.c_int32 * listed.length).from_address(listed.address))


class OnlyDLPack:
    """As a tensor of a library that has neither numpy's interface nor torch's methods."""

    def __init__(self, base: Any) -> None:
        self.base = base

    def __dlpack__(self) -> Any:
        return self.base.__dlpack__()


def test_memory_of_every_kind_is_found() -> None:
    base: Any = np.arange(64, dtype=np.int16).reshape(8, 8)
    for value in (base, OnlyDLPack(base), memoryview(base)):
        found = _buffer.describe(value, "it")
        assert (found.address, found.nbytes, found.items) == (base.ctypes.data, 128, 8)
        assert found.memory == _buffer.HOST
    tail = _buffer.describe(OnlyDLPack(base[2:]), "it")
    assert (tail.address, tail.items) == (base.ctypes.data + 32, 6)
    raw = bytearray(32)
    assert _buffer.describe(raw, "it").nbytes == 32
    pinned = _buffer.describe(raw, "it")
    with pytest.raises(BufferError):  # or the bytes would move away from under the library
        raw.extend(bytes(100))
    del pinned
    mapped = mmap.mmap(-1, 4096)
    assert _buffer.describe(mapped, "it").nbytes == 4096
    assert _buffer.describe((ctypes.c_char * 16)(), "it").nbytes == 16
    assert _buffer.describe(4096, "it") == _buffer.Buffer(4096, 0, 0, _buffer.HOST, None)


def read_only() -> Any:
    fixed = np.zeros(4)
    fixed.flags.writeable = False
    return fixed


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda: np.zeros((8, 8))[:, :4], ValueError, "not contiguous"),
        (lambda: OnlyDLPack(np.zeros((8, 8))[:, :4]), ValueError, "not contiguous"),
        (lambda: np.zeros((8, 8), order="F"), ValueError, "not contiguous"),
        (read_only, ValueError, "read-only"),
        (lambda: b"fixed", ValueError, "read-only"),
        (lambda: np.zeros((0, 8)), ValueError, "empty"),
        (lambda: 0, ValueError, "not an address"),
        (lambda: -4096, ValueError, "not an address"),
        (lambda: 2**64, ValueError, "not an address"),
        (lambda: "0x1000", TypeError, "neither an address nor an array"),
        (lambda: None, TypeError, "neither an address nor an array"),
    ],
)
def test_memory_that_cannot_be_used_is_refused(
    make: Callable[[], Any], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=f"^pool 3: .*{text}"):
        _buffer.describe(make(), "pool 3")


@pytest.mark.parametrize(
    "pages",
    [
        np.array([3, 1, 2], np.int32),
        np.array([3, 1, 2], np.int64),
        np.array([3, 1, 2], np.uint8),
        np.array([3, 1, 2], ">i4"),
        np.array([3, 0, 1, 0, 2, 0], np.int32)[::2],
        [3, 1, 2],
        (3, 1, 2),
        [np.int64(3), 1, np.uint8(2)],
        array.array("q", [3, 1, 2]),
        iter([3, 1, 2]),
    ],
)
def test_page_lists_of_every_kind(pages: Any) -> None:
    assert values(_buffer.indices(pages, "pages")) == [3, 1, 2]


def test_int32_pages_are_not_copied_and_empty_lists_are_fine() -> None:
    pages = np.array([5, 6], np.int32)
    assert _buffer.indices(pages, "pages").address == pages.ctypes.data
    empties: tuple[Any, ...] = ([], np.array([], np.int32), np.array([]), range(0))
    for empty in empties:
        assert _buffer.indices(empty, "pages").length == 0


@pytest.mark.parametrize(
    ("pages", "kind"),
    [
        ([1.0], TypeError),
        (["1"], TypeError),
        (7, TypeError),
        ([[1, 2]], TypeError),
        (np.array([1.0]), TypeError),
        (np.array([True]), TypeError),
        (np.zeros((2, 2), np.int32), ValueError),
        (np.array(5, np.int32), ValueError),
        ([2**31], ValueError),
        (np.array([2**31], np.int64), ValueError),
        (np.array([-(2**31) - 1], np.int64), ValueError),
    ],
)
def test_page_lists_that_are_none(pages: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="^kv_indices: "):
        _buffer.indices(pages, "kv_indices")


def test_opaque_layout_from_arrays_and_from_addresses() -> None:
    pools: list[Any] = [np.zeros((10, 64), np.uint8), np.zeros((10, 16), np.float32)]
    by_array = layout_to_c(Layout.opaque(pools), "kv", [])
    addresses = [pool.ctypes.data for pool in pools]
    by_address = layout_to_c(Layout.opaque(addresses, [640, 640], [64, 64]), "kv", [])
    for out in (by_array, by_address):
        assert (out.pages, out.layers, out.kv, out.base_count) == (10, 2, 1, 2)
        assert (out.tokens_per_page, out.heads, out.head_bytes) == (0, 0, 0)
        assert [(b.address, b.bytes, b.item_bytes) for b in out.bases[:2]] == [
            (address, 640, 64) for address in addresses
        ]


def test_shaped_layout_takes_its_strides_from_the_order() -> None:
    pool: Any = np.zeros((6, 3, 2, 4, 16, 128), np.uint8)  # page, layer, k|v, head, token, bytes
    layout = Layout([pool], tokens_per_page=16, layers=3, heads=4, head_bytes=128, dtype="bfloat16")
    out = layout_to_c(layout, "kv", [])
    assert out.pages == 6 and out.total_heads == 4 and out.dtype == baton.DType.BF16
    strides = (
        out.page_stride,
        out.layer_stride,
        out.kv_stride,
        out.head_stride,
        out.token_stride,
    )
    assert strides == pool.strides[:5]
    assert out.bases[0].item_bytes == pool[0].nbytes
    layout.strides = pool.strides[:5]  # the same, said by hand
    said = layout_to_c(layout, "kv", [])
    assert said.pages == 6 and said.bases[0].item_bytes == pool[0].nbytes


@pytest.mark.parametrize(
    ("layout", "text"),
    [
        (Layout.opaque([]), "no bases"),
        (Layout.opaque([4096]), "its item length is needed"),
        (Layout.opaque([4096], [], [64]), "need their lengths"),
        (Layout.opaque([4096], [640], [64, 64]), "2 given for 1 bases"),
        (Layout.opaque([4096], [640, 640], [64]), "2 given for 1 bases"),
        (Layout.opaque([4096], [32], [64]), "shorter than one page"),
        (Layout.opaque([4096], [640], [0]), "greater than 0"),
        (Layout.opaque([np.zeros((2, 8))], [129], [64]), "its array has 128"),
    ],
)
def test_layouts_that_make_no_sense(layout: Layout, text: str) -> None:
    with pytest.raises(ValueError, match=f"^kv: .*{text}"):
        layout_to_c(layout, "kv", [])


def test_aux_from_a_structured_array_and_from_fields() -> None:
    kind = np.dtype([("token", "<i4"), ("scores", "<f4", (2, 3)), ("total", "<i8")], align=True)
    block = np.zeros(5, kind)
    fields = [
        baton.AuxField("token", "int32"),
        baton.AuxField("scores", np.float32, 6),
        baton.AuxField("total", np.dtype("int64")),
    ]
    by_hand = baton.Aux(block.ctypes.data, fields, slots=5, slot_bytes=kind.itemsize)
    for aux in (baton.Aux.of(block), by_hand):
        out = aux_to_c(aux, [])
        assert (out.address, out.slots, out.slot_bytes) == (block.ctypes.data, 5, 40)
        rows = [(f.name, f.dtype, f.count, f.offset) for f in out.fields[: out.field_count]]
        assert rows == [
            (b"token", 9, 1, 0),
            (b"scores", 7, 6, 4),
            (b"total", 11, 1, 32),
        ]
    plain = aux_to_c(baton.Aux.of(np.zeros((5, 8), np.uint8)), [])
    assert (plain.slots, plain.slot_bytes, plain.field_count) == (5, 8, 0)
    with pytest.raises(ValueError, match="needs slots and slot_bytes"):
        aux_to_c(baton.Aux(4096), [])
    with pytest.raises(ValueError, match="do not fit"):
        aux_to_c(baton.Aux(np.zeros(8), slots=9, slot_bytes=8), [])


def test_arguments_that_contradict_each_other() -> None:
    pool = np.zeros((4, 64), np.uint8)
    layout = Layout.opaque([pool])
    for args, text in (
        (baton.KVArgs(), "nothing to hand over"),
        (baton.KVArgs(kv_data_ptrs=[pool], kv_layout=layout), "not both"),
        (baton.KVArgs(kv_data_ptrs=[pool], aux=pool, aux_data_ptrs=[pool]), "not both"),
        (baton.KVArgs(kv_data_ptrs=[pool], engine_rank=-1), "engine_rank: -1"),
        (baton.KVArgs(kv_data_ptrs=[pool], key="a\0b"), "key: contains a zero"),
    ):
        with pytest.raises(ValueError, match=text):
            baton.KVManager(args)
    with pytest.raises(AttributeError):
        baton.KVArgs().kv_pointers = []  # type: ignore[attr-defined]  # a typing error is told


def test_dtype_names() -> None:
    assert baton.DType.of(np.dtype("float16")) is baton.DType.F16
    assert baton.DType.of(np.uint64) is baton.DType.U64
    assert baton.DType.of("torch.float8_e4m3fn") is baton.DType.F8_E4M3
    assert baton.DType.of(baton.DType.BF16) is baton.DType.BF16
    with pytest.raises(ValueError, match="complex64"):
        baton.DType.of(np.complex64)
