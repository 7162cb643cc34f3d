# SPDX-License-Identifier: Apache-2.0
"""KVArgs: everything a manager is told, and its translation to C.

The first nine fields are the interface that engines know. What that interface cannot say are
further fields, all with defaults.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from . import _abi
from ._buffer import c_string, uint32
from .layout import Aux, Layout, Region, RegionKind, aux_to_c, layout_to_c, region_to_c
from .pool import pool_at

AUX_REGION = "aux"  # the name under which separate aux buffers travel


@dataclass(slots=True)
class KVArgs:
    """What a manager needs to know. Set by keyword or by attribute; 0 and None mean the default.

    Wherever a pointer is expected (``kv_data_ptrs``, bases, aux buffers) an address, a numpy
    array, a torch tensor, any DLPack object or a Pool will do. Arrays need no lengths, if their
    first dimension counts the pages.
    """

    engine_rank: int = 0  #: tensor-parallel rank
    num_receivers: int = 1  #: decode ranks expected per room; the grants say how many there are
    kv_data_ptrs: list[Any] = field(default_factory=list)  #: one per layer (all K, then all V)
    kv_data_lens: list[int] = field(default_factory=list)  #: bytes of each
    kv_item_lens: list[int] = field(default_factory=list)  #: bytes of one page in each
    ib_device: str = ""
    max_inflight: int = 0
    max_sge: int = 0
    verbose: bool = False  #: one line per room to stderr

    tp_size: int = 0  #: 0: engine_rank is only a label, this manager is a group of one
    pp_rank: int = 0
    pp_size: int = 1
    dp_rank: int = 0
    dp_size: int = 1

    host: str | None = None  #: address to listen on and to tell peers
    port: int = 0  #: 0: any
    bootstrap_addr: str | None = None  #: None: learnt from the first sender or receiver
    bootstrap_allow: str | None = None  #: comma list of host, host:port or CIDR; None: any
    register_rank: bool = False  #: prefill: register at open instead of at the first sender
    fingerprint: str | None = None  #: of the model; peers with another one are refused
    kv_cache_dtype: str | None = None  #: told in /route

    kv_layout: Layout | None = None  #: None: opaque pages from kv_data_ptrs
    states: list[Region] = field(default_factory=list)  #: regions 1, 2 ...
    aux: Any = None  #: Aux, or a numpy array of which the first dimension counts the slots
    aux_data_ptrs: list[Any] = field(default_factory=list)  #: or: one buffer per field
    aux_data_lens: list[int] = field(default_factory=list)
    aux_item_lens: list[int] = field(default_factory=list)

    max_rooms: int = 0
    backends: str | Sequence[str] | None = None  #: in order of preference
    copy_threads: int = 0
    tcp_streams: int = 0
    heartbeat_ms: int = 0
    silent_ms: int = 0
    match_timeout_ms: int = 0
    deadline_ms: int = 0

    key: str | None = None  #: shared secret
    tls_certificate: str | None = None  #: PEM files, all three or none
    tls_key: str | None = None
    tls_ca: str | None = None
    verify: bool = False  #: sums of all bytes are compared before Success


_NUMBERS = (
    "tp_size pp_rank pp_size dp_rank dp_size port max_rooms copy_threads tcp_streams heartbeat_ms "
    "silent_ms match_timeout_ms deadline_ms max_inflight max_sge"
).split()
_TEXTS = (
    "host bootstrap_allow fingerprint kv_cache_dtype key tls_certificate tls_key tls_ca ib_device"
).split()


@dataclass
class ManagerPlan:
    """KVArgs as C reads them, and what Python must remember of them."""

    options: _abi.ManagerOptions
    owners: list[Any]  # memory and strings that options point to
    region_names: list[str]
    has_aux: bool
    aux_region: int  # index of the region that carries separate aux buffers; 0: none


def manager_plan(args: KVArgs) -> ManagerPlan:
    """Checks what only Python can know; baton_manager_open checks the rest."""
    owners: list[Any] = []
    options = _abi.ManagerOptions(struct_size=ctypes.sizeof(_abi.ManagerOptions))
    options.rank = uint32(args.engine_rank, "engine_rank")
    for name in _NUMBERS:
        setattr(options, name, uint32(getattr(args, name), name))
    for name in _TEXTS:
        setattr(options, name, c_string(getattr(args, name), name))
    options.bootstrap = c_string(args.bootstrap_addr, "bootstrap_addr")
    options.backends = c_string(_comma_list(args.backends), "backends")
    options.register_rank = bool(args.register_rank)
    options.verify = bool(args.verify)
    options.verbose = bool(args.verbose)

    if args.aux is not None and args.aux_data_ptrs:
        raise ValueError("aux: give either aux or aux_data_ptrs, not both")
    regions = _regions(args, owners)
    array = (_abi.Region * len(regions))(*regions)
    options.regions = ctypes.cast(array, ctypes.POINTER(_abi.Region))
    options.region_count = len(regions)
    owners += [regions, array]
    if args.aux is not None:
        aux = aux_to_c(Aux.of(args.aux), owners)
        options.aux = ctypes.pointer(aux)
        owners.append(aux)
    return ManagerPlan(
        options,
        owners + _pools_of(owners),
        [region.name.decode() for region in regions],
        args.aux is not None,
        len(regions) - 1 if args.aux_data_ptrs else 0,
    )


def _comma_list(names: str | Sequence[str] | None) -> str | None:
    return names if names is None or isinstance(names, str) else ",".join(names)


def _regions(args: KVArgs, owners: list[Any]) -> list[_abi.Region]:
    kv_region = _abi.Region(struct_size=ctypes.sizeof(_abi.Region), kind=RegionKind.KV, name=b"kv")
    kv_region.layout = layout_to_c(_kv_layout(args), "kv", owners)
    regions = [kv_region]
    for state in args.states:
        regions.append(region_to_c(state, "state", owners))
    if args.aux_data_ptrs:
        layout = Layout.opaque(args.aux_data_ptrs, args.aux_data_lens, args.aux_item_lens)
        regions.append(region_to_c(Region(AUX_REGION, RegionKind.SLOT, layout), "aux", owners))
    return regions


def _kv_layout(args: KVArgs) -> Layout:
    if args.kv_layout is not None:
        if args.kv_data_ptrs:
            raise ValueError("kv_layout: give either kv_layout or kv_data_ptrs, not both")
        return args.kv_layout
    if not args.kv_data_ptrs:
        raise ValueError("kv_data_ptrs: nothing to hand over; give the pools, or a kv_layout")
    return Layout.opaque(args.kv_data_ptrs, args.kv_data_lens, args.kv_item_lens)


def _pools_of(owners: list[Any]) -> list[Any]:
    """Handles of the pools that registered addresses lie in, so that they outlive the manager."""
    addresses = {owner.address for owner in owners if hasattr(owner, "address")}
    handles = {id(h): h for h in map(pool_at, sorted(addresses)) if h is not None}
    return list(handles.values())
