# SPDX-License-Identifier: Apache-2.0
"""What may stand where the interface says "pointer": where is it, how long, of which kind.

Raw addresses, numpy arrays, torch tensors and anything else that speaks
``__array_interface__``, ``__cuda_array_interface__``, ``__dlpack__`` or the buffer protocol.
Nothing is imported to find out, and nothing is copied.
"""

from __future__ import annotations

import array
import ctypes
import operator
from dataclasses import dataclass
from typing import Any, NamedTuple

from . import _abi

HOST = 0
CUDA = 1

_INT32_MAX = 2**31 - 1
_DLPACK_CPU = (1, 3, 11)  # cpu, pinned by cuda, pinned by rocm
_DLPACK_CUDA = (2, 13)  # cuda, cuda managed


@dataclass(frozen=True)
class Buffer:
    """A piece of memory. ``items`` is its first dimension, 0 where it has none."""

    address: int
    nbytes: int  # 0: not known (a bare address)
    items: int
    memory: int
    owner: Any  # keeps the memory where it is


def describe(value: Any, what: str) -> Buffer:
    """The memory behind ``value``; TypeError or ValueError that starts with ``what``."""
    if isinstance(value, int):
        return _from_address(value, what)
    if hasattr(value, "__array_interface__"):
        return _from_interface(value, value.__array_interface__, HOST, what)
    if hasattr(value, "data_ptr"):
        return _from_torch(value, what)
    if hasattr(value, "__cuda_array_interface__"):
        return _from_interface(value, value.__cuda_array_interface__, CUDA, what)
    if hasattr(value, "__dlpack__"):
        return _from_dlpack(value, what)
    return _from_buffer(value, what)


def _from_address(value: int, what: str) -> Buffer:
    if not 0 < value < 2**64:
        raise ValueError(f"{what}: {value} is not an address")
    return Buffer(value, 0, 0, HOST, None)


def _from_interface(owner: Any, interface: dict[str, Any], memory: int, what: str) -> Buffer:
    shape = tuple(interface["shape"])
    item_size = int(interface["typestr"][2:])
    data = interface.get("data")
    if data is None:
        raise TypeError(f"{what}: its array interface gives no address")
    address, read_only = data
    if read_only:
        raise ValueError(f"{what}: the array is read-only, but a hand-over may store into it")
    _check_contiguous(shape, interface.get("strides"), item_size, what)
    return _make(owner, int(address), shape, item_size, memory, what)


def _from_torch(tensor: Any, what: str) -> Buffer:
    if not tensor.is_contiguous():
        raise ValueError(f"{what}: the tensor is not contiguous")
    kind = tensor.device.type
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"{what}: the tensor is on device {kind}, neither cpu nor cuda")
    memory = CUDA if kind == "cuda" else HOST
    shape = tuple(int(n) for n in tensor.shape)
    return _make(tensor, int(tensor.data_ptr()), shape, int(tensor.element_size()), memory, what)


class _DLTensor(ctypes.Structure):
    """DLPack's DLTensor (version 0 and 1 alike), as https://dmlc.github.io/dlpack gives it."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("type_code", ctypes.c_uint8),
        ("type_bits", ctypes.c_uint8),
        ("type_lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


def _from_dlpack(value: Any, what: str) -> Buffer:
    capsule = value.__dlpack__()  # left unconsumed: it frees itself with the Buffer
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    tensor = _DLTensor.from_address(get(capsule, b"dltensor"))
    if tensor.device_type in _DLPACK_CPU:
        memory = HOST
    elif tensor.device_type in _DLPACK_CUDA:
        memory = CUDA
    else:
        raise ValueError(f"{what}: DLPack device type {tensor.device_type} is not supported")
    shape = tuple(tensor.shape[: tensor.ndim])
    item_size = (tensor.type_bits * tensor.type_lanes + 7) // 8
    if tensor.strides:
        strides = tuple(n * item_size for n in tensor.strides[: tensor.ndim])
        _check_contiguous(shape, strides, item_size, what)
    address = (tensor.data or 0) + tensor.byte_offset
    return _make((value, capsule), address, shape, item_size, memory, what)


def _from_buffer(value: Any, what: str) -> Buffer:
    try:
        view = memoryview(value)
    except TypeError:
        raise TypeError(
            f"{what}: {type(value).__name__} is neither an address nor an array, tensor or buffer"
        ) from None
    if view.readonly:
        raise ValueError(f"{what}: the buffer is read-only, but a hand-over may store into it")
    if not view.c_contiguous:
        raise ValueError(f"{what}: the buffer is not contiguous")
    shape = view.shape or ()
    pinned = (ctypes.c_char * view.nbytes).from_buffer(value)  # a bytearray must not move
    return _make((value, pinned), ctypes.addressof(pinned), shape, view.itemsize, HOST, what)


def _make(
    owner: Any, address: int, shape: tuple[int, ...], item_size: int, memory: int, what: str
) -> Buffer:
    nbytes = item_size
    for extent in shape:
        nbytes *= extent
    if nbytes == 0 or address == 0:
        raise ValueError(f"{what}: the array is empty")
    return Buffer(address, nbytes, shape[0] if shape else 1, memory, owner)


def _check_contiguous(
    shape: tuple[int, ...], strides: tuple[int, ...] | None, item_size: int, what: str
) -> None:
    if strides is None:
        return
    expected = item_size
    for extent, stride in zip(reversed(shape), reversed(strides)):
        if extent != 1 and stride != expected:
            raise ValueError(f"{what}: the array is not contiguous (C order)")
        expected *= extent


class Indices(NamedTuple):
    """A list of page numbers as the library reads it: int32, contiguous."""

    address: int | None
    length: int
    owner: Any


def indices(value: Any, what: str) -> Indices:
    """Page numbers from an int32 array (not copied), or any other sequence of integers."""
    interface = getattr(value, "__array_interface__", None)
    if interface is not None:
        shape = interface["shape"]
        contiguous = interface.get("strides") is None
        if interface["typestr"] == _INT32 and len(shape) == 1 and contiguous:
            return Indices(interface["data"][0], shape[0], value)
        return _from_array(value, what)
    if hasattr(value, "detach") and hasattr(value, "tolist"):  # a torch tensor, on any device
        value = value.detach().tolist()
    try:
        numbers = array.array("i", map(operator.index, value))
    except TypeError:
        raise TypeError(f"{what}: page numbers must be integers in one flat list") from None
    except OverflowError:
        raise ValueError(f"{what}: a page number does not fit in 32 bits") from None
    address, count = numbers.buffer_info()
    return Indices(address if count else None, count, numbers)


_INT32 = "<i4" if array.array("H", [1]).tobytes()[0] == 1 else ">i4"


def _from_array(value: Any, what: str) -> Indices:
    import numpy  # it is there: whoever has the interface has numpy or looks like it

    numbers = numpy.asarray(value)
    if numbers.ndim != 1:
        raise ValueError(f"{what}: page numbers must be one flat array, not {numbers.ndim}-d")
    if numbers.size == 0:
        return Indices(None, 0, None)
    if numbers.dtype.kind not in "iu":
        raise TypeError(f"{what}: page numbers must be integers, not {numbers.dtype}")
    if int(numbers.max()) > _INT32_MAX or int(numbers.min()) < -_INT32_MAX - 1:
        raise ValueError(f"{what}: a page number does not fit in 32 bits")
    plain = numpy.ascontiguousarray(numbers, dtype=numpy.int32)
    return Indices(int(plain.__array_interface__["data"][0]), int(plain.size), plain)


def uint32(value: Any, what: str) -> int:
    """An integer that C's uint32_t holds."""
    number = operator.index(value)
    if not 0 <= number < 2**32:
        raise ValueError(f"{what}: {number} is not between 0 and 4294967295")
    return number


def milliseconds(seconds: float | None, what: str) -> int:
    """Seconds as the library takes them; None is 0, "the default"."""
    if seconds is None:
        return 0
    if not 0 < seconds <= 4_294_967:
        raise ValueError(f"{what}: {seconds} s is not between 0 and 4294967 s")
    return max(1, round(seconds * 1000))


def room_number(value: Any) -> int:
    """A room, 0 .. 2^63-1."""
    number = operator.index(value)
    if not 0 <= number <= _abi.ROOM_MAX:
        raise ValueError(f"bootstrap_room: {number} is not between 0 and 2^63-1")
    return number


def c_string(value: str | None, what: str) -> bytes | None:
    """Text for C; None and "" are both NULL, "not given"."""
    if not value:
        return None
    if "\0" in value:
        raise ValueError(f"{what}: contains a zero character")
    return value.encode()
