# SPDX-License-Identifier: Apache-2.0
"""The C side of include/baton.h as ctypes sees it: structures, constants and prototypes.

This module describes and binds, nothing more; it loads no library and imports nothing of the
package, so that a test can hold it against a table that the C compiler printed
(tests/transfer/abi_table.c). Field names and order are those of the header.
"""

from __future__ import annotations

import ctypes
from ctypes import (
    POINTER,
    Structure,
    c_bool,
    c_char,
    c_char_p,
    c_int,
    c_int32,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any

ROOM_MAX = 2**63 - 1

OK = 0
AGAIN = 1

ERRORS: dict[int, str] = {
    -1: "BATON_EINVAL",
    -2: "BATON_ENOMEM",
    -3: "BATON_ESYSTEM",
    -4: "BATON_EBUSY",
    -5: "BATON_EEXIST",
    -6: "BATON_ENOTFOUND",
    -7: "BATON_ELIMIT",
    -8: "BATON_ESTATE",
    -9: "BATON_ETIMEOUT",
    -10: "BATON_EPEER",
    -11: "BATON_EPROTOCOL",
    -12: "BATON_ELAYOUT",
    -13: "BATON_EAUTH",
    -14: "BATON_EABORTED",
    -15: "BATON_EUNMATCHED",
    -16: "BATON_EUNREACHABLE",
    -17: "BATON_ECORRUPT",
    -18: "BATON_EUNSUPPORTED",
    -19: "BATON_EDECLINED",
}


class Base(Structure):
    _fields_ = [
        ("address", c_void_p),
        ("bytes", c_uint64),
        ("item_bytes", c_uint64),
    ]


class Layout(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("memory", c_uint32),
        ("dtype", c_uint32),
        ("pages", c_uint32),
        ("tokens_per_page", c_uint32),
        ("layers", c_uint32),
        ("first_layer", c_uint32),
        ("kv", c_uint32),
        ("heads", c_uint32),
        ("first_head", c_uint32),
        ("total_heads", c_uint32),
        ("head_bytes", c_uint32),
        ("page_stride", c_uint64),
        ("layer_stride", c_uint64),
        ("kv_stride", c_uint64),
        ("head_stride", c_uint64),
        ("token_stride", c_uint64),
        ("bases", POINTER(Base)),
        ("base_count", c_uint32),
        ("reserved", c_uint32),
    ]


class Region(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("kind", c_uint32),
        ("name", c_char_p),
        ("layout", Layout),
    ]


class AuxField(Structure):
    _fields_ = [
        ("name", c_char_p),
        ("dtype", c_uint32),
        ("count", c_uint32),
        ("offset", c_uint64),
    ]


class Aux(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("slots", c_uint32),
        ("address", c_void_p),
        ("slot_bytes", c_uint64),
        ("fields", POINTER(AuxField)),
        ("field_count", c_uint32),
        ("reserved", c_uint32),
    ]


class ManagerOptions(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("rank", c_uint32),
        ("tp_size", c_uint32),
        ("pp_rank", c_uint32),
        ("pp_size", c_uint32),
        ("dp_rank", c_uint32),
        ("dp_size", c_uint32),
        ("host", c_char_p),
        ("port", c_uint32),
        ("register_rank", c_uint32),
        ("bootstrap", c_char_p),
        ("bootstrap_allow", c_char_p),
        ("fingerprint", c_char_p),
        ("kv_cache_dtype", c_char_p),
        ("regions", POINTER(Region)),
        ("region_count", c_uint32),
        ("max_rooms", c_uint32),
        ("aux", POINTER(Aux)),
        ("backends", c_char_p),
        ("copy_threads", c_uint32),
        ("tcp_streams", c_uint32),
        ("heartbeat_ms", c_uint32),
        ("silent_ms", c_uint32),
        ("match_timeout_ms", c_uint32),
        ("deadline_ms", c_uint32),
        ("key", c_char_p),
        ("tls_certificate", c_char_p),
        ("tls_key", c_char_p),
        ("tls_ca", c_char_p),
        ("ib_device", c_char_p),
        ("max_inflight", c_uint32),
        ("max_sge", c_uint32),
        ("verify", c_uint32),
        ("verbose", c_uint32),
        ("reach_timeout_ms", c_uint32),
        ("reserved", c_uint32),
    ]


class Counters(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("rooms_open", c_uint32),
        ("rooms_quarantined", c_uint32),
        ("pages_quarantined", c_uint32),
        ("links_up", c_uint32),
        ("links_degraded", c_uint32),
        ("rooms_succeeded", c_uint64),
        ("rooms_failed", c_uint64),
        ("rooms_refused", c_uint64),
        ("bytes_sent", c_uint64),
        ("operations_sent", c_uint64),
        ("bytes_received", c_uint64),
        ("frames_bad", c_uint64),
        ("frames_stale", c_uint64),
        ("links_lost", c_uint64),
        ("links_refused", c_uint64),
        ("fallbacks", c_uint64),
        ("fences", c_uint64),
    ]


class Timeline(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("state", c_uint32),
        ("bootstrapped_ns", c_uint64),
        ("granted_ns", c_uint64),
        ("first_send_ns", c_uint64),
        ("last_byte_ns", c_uint64),
        ("ended_ns", c_uint64),
        ("fenced_ns", c_uint64),
        ("bytes", c_uint64),
        ("operations", c_uint64),
        ("peers", c_uint32),
        ("packed", c_uint32),
        ("backend", c_char * 16),
        ("reason", c_char * 112),
        ("requests", c_uint64),
        ("doorbells", c_uint64),
    ]


class SenderOptions(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("deadline_ms", c_uint32),
        ("room", c_uint64),
        ("bootstrap", c_char_p),
        ("dest_ranks", POINTER(c_uint32)),
        ("dest_rank_count", c_uint32),
        ("layerwise", c_uint32),
    ]


class SenderInitOptions(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("pages", c_uint32),
        ("first_token", c_uint32),
        ("tokens", c_uint32),
        ("aux_slot", c_int32),
    ]


class ReceiverOptions(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("deadline_ms", c_uint32),
        ("room", c_uint64),
        ("bootstrap", c_char_p),
        ("prefill_dp_rank", c_int32),
        ("queue_position", c_uint32),
    ]


class StatePages(Structure):
    _fields_ = [
        ("region", c_uint32),
        ("first_token", c_uint32),
        ("pages", c_void_p),
        ("count", c_uint32),
    ]


class ReceiverInitOptions(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("page_count", c_uint32),
        ("pages", c_void_p),
        ("prefix", c_uint32),
        ("aux_slot", c_int32),
        ("states", POINTER(StatePages)),
        ("state_count", c_uint32),
        ("deadline_ms", c_uint32),
    ]


class BackendInfo(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("available", c_uint32),
        ("name", c_char * 16),
        ("about", c_char * 112),
        ("why", c_char * 112),
    ]


class PortInfo(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("port", c_uint32),
        ("device", c_char * 64),
        ("state", c_char * 16),
        ("link_layer", c_uint32),
        ("lid", c_uint32),
        ("mtu", c_uint32),
        ("mtu_max", c_uint32),
        ("speed_mbps", c_uint64),
        ("max_sge", c_uint32),
        ("max_sge_read", c_uint32),
        ("max_requests", c_uint32),
        ("gid_count", c_uint32),
        ("rails", c_uint32),
        ("reserved", c_uint32),
        ("why", c_char * 160),
    ]


class GidInfo(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("index", c_uint32),
        ("gid", c_char * 48),
        ("type", c_char * 16),
        ("netdev", c_char * 32),
        ("rails", c_uint32),
        ("reserved", c_uint32),
        ("why", c_char * 112),
    ]


STRUCTURES: dict[str, type[Structure]] = {
    "baton_base": Base,
    "baton_layout": Layout,
    "baton_region": Region,
    "baton_aux_field": AuxField,
    "baton_aux": Aux,
    "baton_manager_options": ManagerOptions,
    "baton_counters": Counters,
    "baton_timeline": Timeline,
    "baton_sender_options": SenderOptions,
    "baton_sender_init_options": SenderInitOptions,
    "baton_receiver_options": ReceiverOptions,
    "baton_state_pages": StatePages,
    "baton_receiver_init_options": ReceiverInitOptions,
    "baton_backend_info": BackendInfo,
    "baton_port_info": PortInfo,
    "baton_gid_info": GidInfo,
}

_handle = c_void_p
_out = POINTER(c_void_p)
_err = (c_char_p, c_size_t)

# Calls that never wait: made with the interpreter lock held (PyDLL). Giving the lock away for
# some nanoseconds would cost more than the call, and getting it back can take a whole switch
# interval (5 ms) when other Python threads compute, which is what a scheduler must not see.
QUICK: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "baton_version": (c_char_p, ()),
    "baton_error_name": (c_char_p, (c_int,)),
    "baton_error_text": (c_char_p, (c_int,)),
    "baton_state_name": (c_char_p, (c_int,)),
    "baton_layout_fill": (c_int, (POINTER(Layout), c_int, POINTER(c_uint64))),
    "baton_pool_address": (c_void_p, (_handle,)),
    "baton_manager_port": (c_uint32, (_handle,)),
    "baton_manager_eventfd": (c_int, (_handle,)),
    "baton_manager_tick": (None, (_handle,)),
    "baton_manager_counters": (c_int, (_handle, POINTER(Counters))),
    "baton_sender_init": (c_int, (_handle, POINTER(SenderInitOptions))),
    "baton_sender_state": (c_int, (_handle, c_uint32, c_void_p, c_uint32, c_uint32)),
    "baton_sender_send": (c_int, (_handle, c_void_p, c_uint32, c_bool)),
    "baton_sender_layer_ready": (c_int, (_handle, c_uint32)),
    "baton_sender_poll": (c_int, (_handle,)),
    "baton_sender_prefix": (c_uint32, (_handle,)),
    "baton_sender_written": (c_uint64, (_handle,)),
    "baton_sender_abort": (c_int, (_handle, c_char_p)),
    "baton_sender_refuse": (c_int, (_handle, c_char_p)),
    "baton_sender_failure": (c_int, (_handle, c_char_p, c_size_t)),
    "baton_sender_fenced": (c_int, (_handle,)),
    "baton_sender_timeline": (c_int, (_handle, POINTER(Timeline))),
    "baton_receiver_init": (c_int, (_handle, POINTER(ReceiverInitOptions))),
    "baton_receiver_poll": (c_int, (_handle,)),
    "baton_receiver_abort": (c_int, (_handle, c_char_p)),
    "baton_receiver_refuse": (c_int, (_handle, c_char_p)),
    "baton_receiver_decline": (c_int, (_handle, c_char_p)),
    "baton_receiver_landed": (c_int, (_handle, POINTER(c_uint32))),
    "baton_receiver_failure": (c_int, (_handle, c_char_p, c_size_t)),
    "baton_receiver_fenced": (c_int, (_handle,)),
    "baton_receiver_timeline": (c_int, (_handle, POINTER(Timeline))),
    "baton_pollset_add_sender": (c_int, (_handle, c_uint32, _handle)),
    "baton_pollset_add_receiver": (c_int, (_handle, c_uint32, _handle)),
    "baton_pollset_clear": (c_int, (_handle, c_uint32)),
    "baton_poll_many": (c_int, (_handle, c_void_p, c_uint32)),
    "baton_bootstrap_port": (c_uint32, (_handle,)),
    "baton_backend_info_get": (c_int, (c_uint32, POINTER(BackendInfo))),
    "baton_device_list_problem": (c_char_p, (_handle,)),
    "baton_device_list_port": (c_int, (_handle, c_uint32, POINTER(PortInfo))),
    "baton_device_list_gid": (c_int, (_handle, c_uint32, c_uint32, POINTER(GidInfo))),
    "baton_log_level": (None, (c_int,)),
}

# Calls that may wait (for threads, memory or time), or are rare: made without the lock (CDLL).
SLOW: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "baton_pool_alloc": (c_int, (c_uint64, _out, *_err)),
    "baton_pool_free": (None, (_handle,)),
    "baton_manager_open": (c_int, (POINTER(ManagerOptions), _out, *_err)),
    "baton_manager_close": (None, (_handle,)),
    "baton_sender_open": (c_int, (_handle, POINTER(SenderOptions), _out, *_err)),
    "baton_sender_close": (None, (_handle,)),
    "baton_receiver_open": (c_int, (_handle, POINTER(ReceiverOptions), _out, *_err)),
    "baton_receiver_close": (None, (_handle,)),
    "baton_pollset_open": (c_int, (c_uint32, _out)),
    "baton_pollset_close": (None, (_handle,)),
    "baton_pollset_wait": (c_int, (_handle, c_void_p, c_uint32, c_uint32)),
    "baton_bootstrap_open": (c_int, (c_char_p, c_uint32, _out, *_err)),
    "baton_bootstrap_close": (None, (_handle,)),
    "baton_device_list_open": (c_int, (c_char_p, c_uint32, _out, *_err)),
    "baton_device_list_close": (None, (_handle,)),
}


class Functions:
    """The library's functions, by their C names, with prototypes set."""

    def __init__(self, path: str) -> None:
        self.path = path
        for loader, table in ((ctypes.PyDLL, QUICK), (ctypes.CDLL, SLOW)):
            library = loader(path)
            for name, (result, arguments) in table.items():
                function = getattr(library, name)  # AttributeError: not the library we expect
                function.restype = result
                function.argtypes = arguments
                setattr(self, name, function)

    def __getattr__(self, name: str) -> Any:  # only reached for what bind did not find
        raise AttributeError(f"libbaton has no function {name}")
