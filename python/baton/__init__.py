# SPDX-License-Identifier: Apache-2.0
"""Baton: hand a KV cache from one process to another, safely, at memory speed.

    server = KVBootstrapServer(0)                       # somewhere
    address = f"127.0.0.1:{server.port}"

    # prefill                                           # decode
    mgr = KVManager(args)                               mgr = KVManager(args)
    sender = KVSender(mgr, address, room, [])           receiver = KVReceiver(mgr, address, room)
    sender.init(len(pages))                             receiver.init(pages, None)
    sender.send(pages)
    while sender.poll() < KVPoll.Success: ...           while receiver.poll() < KVPoll.Success: ...

docs/python.md has the whole story.
"""

from .args import KVArgs
from .errors import BatonError, TransferError, TryAgain
from .info import Backend, backends, library_path, log_level, version
from .layout import Aux, AuxField, DType, Layout, Memory, Order, Region, RegionKind
from .pollset import PollSet
from .pool import Pool
from .transfer import (
    KVBootstrapServer,
    KVManager,
    KVPoll,
    KVReceiver,
    KVSender,
    Timeline,
)

__version__ = "0.1.0"

__all__ = [
    "Aux",
    "AuxField",
    "Backend",
    "BatonError",
    "DType",
    "KVArgs",
    "KVBootstrapServer",
    "KVManager",
    "KVPoll",
    "KVReceiver",
    "KVSender",
    "Layout",
    "Memory",
    "Order",
    "PollSet",
    "Pool",
    "Region",
    "RegionKind",
    "Timeline",
    "TransferError",
    "TryAgain",
    "backends",
    "library_path",
    "log_level",
    "version",
]
