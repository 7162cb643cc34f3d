# shellcheck shell=bash disable=SC2016
# SPDX-License-Identifier: Apache-2.0
# What run.sh runs, one suite a line; those with the same kernel and mode share a VM.
#
#   suite NAME LEVEL KERNELS MODE SECONDS COMMAND            in one VM
#   two   NAME LEVEL KERNELS MODE SECONDS FIRST SECOND       a command in each of two joined VMs;
#                                     a first one with `reboot -f` in its command is to die by it
#   host  NAME LEVEL SECONDS COMMAND                         here, in this folder, without a VM
#
# LEVEL    quick (in both levels) or full
# KERNELS  one or several series, of which those that can be had here are taken; `all`: every one
# SECONDS  a bound against hanging, with room for a busy machine
# MODE     of vm.sh --net, and after a space what netem is to do: "pair delay 2ms loss 2%"
#
# The working folder has baton, libbaton.so, the plugins, every test_transfer_* and test_rdma_*
# program, and the Python package in py/. In the VM `wire` cuts and heals the network, `cases` runs
# some cases of a suite, `nodes` runs test_rdma_node as prefill and as decode (rdma_node.c).

wire='prefill=rxe0 decode=rxe1'
rails='prefill=rxe0,rxe1 decode=rxe0,rxe1'
lossy='pair delay 2ms loss 2%'
server='10.77.0.1:9900'
ucx='UCX_NET_DEVICES=rxe0:1 UCX_TLS=rc,self UCX_IB_GID_INDEX=0' # why, and why not on 6.12: README.md
# It takes minutes to set up its queue pairs; all cases run over tcp, without a VM (transfer.conformance.ucx).
ucx_cases='one_page chunks orders_in_pairs tensor_parallel states rooms_at_once large_room abort_in_the_middle reuse_under_load end_is_closed manager_is_closed'

suite conformance_cases quick all pair 180 "cases ./test_transfer_conformance verbs $wire -- one_page chunks prefix replicated_heads abort_in_the_middle end_is_closed"
suite queue_pair_error  quick all pair 120 'nodes verbs "rooms=6 pages=16 failures=1" "device=rxe0 break=2 by=\"wire cut\" mend=\"wire heal\"" device=rxe1'

host  vm                full 1800 './test_vm.sh'

suite conformance       full all dummy 1800 './test_transfer_conformance verbs'
suite conformance_read  full all dummy 1800 './test_transfer_conformance verbs-read'
suite conformance_ucx   full 6.1 dummy 1200 "$ucx cases ./test_transfer_conformance ucx -- $ucx_cases"
suite peer_killed       full all dummy 600 './test_transfer_faults kill verbs'
suite peer_killed_ucx   full 6.1 dummy 600 "$ucx ./test_transfer_faults kill ucx"
suite many_rooms        full all dummy 600 'nodes verbs "rooms=2000 at_once=16 pages=2 order=1" tp=4 tp=2'
suite many_rooms_layers full all dummy 600 'nodes verbs "rooms=2000 at_once=16 pages=2 order=0" tp=1 tp=2'
suite bench             full all dummy 120 './baton bench transfer --backend verbs --total-bytes 4M --iterations 2 --rooms 50 --quiet'
suite python            full all dummy 600 'export BATON_BACKENDS=verbs; ./baton bootstrap --host 127.0.0.1 --port 9900 & python3 py/seed_program.py prefill 9900 & prefill=$!; python3 py/seed_program.py decode 9900 && wait $prefill'
suite fleet             full all dummy 900 'BATON_PATIENCE=10 python3 py/same_answers.py verbs'

suite conformance       full all "$lossy" 2400 "FLEET_PATIENCE=8 ./test_transfer_conformance verbs $wire"
suite queue_pair_error  full all "$lossy" 240 'nodes verbs "rooms=8 pages=64 failures=1" "device=rxe0 break=3 by=\"wire cut\" mend=\"wire heal\"" device=rxe1'
suite falls_back        full all pair 240 'wire cut; falls-back; status=$?; wire heal; exit $status'
suite rails             full all pair 500 'FLEET_PATIENCE=6 ./test_transfer_rails'
suite many_rooms        full all "$lossy" 600 'nodes verbs "rooms=100 at_once=16 pages=4" "device=rxe0 tp=2" "device=rxe1 tp=4 order=1"'

suite conformance       full all rails 1800 "./test_transfer_conformance verbs $rails"
suite rail_down         full all rails 240 'nodes verbs "rooms=12 pages=64 may_fail=1 device=rxe0,rxe1" "break=3 by=\"wire down rxe1\" mend=\"wire heal rxe1\"" ""'

two   hand_overs        full all virtio 300 "./test_rdma_node prefill $server verbs host=\$RDMA_ADDRESS rooms=2000 at_once=16 pages=2 tp=2 order=1" "./test_rdma_node decode $server verbs host=\$RDMA_ADDRESS rooms=2000 at_once=16 pages=2 tp=4 order=2"
two   link_lost         full all virtio 300 "./test_rdma_node prefill $server verbs host=\$RDMA_ADDRESS rooms=8 failures=1 break=3 by='wire cut; (sleep 8; wire heal) &'" "./test_rdma_node decode $server verbs host=\$RDMA_ADDRESS rooms=8 failures=1"
two   machine_dies      full all virtio 300 "./test_rdma_node prefill $server verbs host=\$RDMA_ADDRESS rooms=4 break=3 by='reboot -f'" "./test_rdma_node decode $server verbs host=\$RDMA_ADDRESS rooms=4 failures=1"
