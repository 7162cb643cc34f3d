#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs one command in a throw-away VM that has RDMA devices, and ends with its status. The devices are
# Soft-RoCE (rdma_rxe) in the distribution's own kernel: the verbs are real, only the NIC is
# software. With /dev/kvm it is quick; without, everything is emulated, and it still takes seconds.
usage() {
    cat <<'USAGE'
usage: vm.sh [OPTION...] [--] COMMAND [ARGUMENT...]
  COMMAND is a shell line when it is one word, run in the VM's /work by sh; its stdout and stderr
  come out as stdout here. Words of this script go to stderr and begin with "vm:".

  --kernel SERIES    6.1, 6.12, or the distribution's own            [default]
  --net MODE         what the RDMA devices sit on                    [dummy]
                       dummy   rxe0, which reaches itself (no packet on any wire)
                       pair    rxe0 and rxe1, the two ends of a veth pair: packets, netem
                       rails   rxe0 and rxe1, each reaching itself
                       virtio  rxe0 on a NIC that --link joins to another VM (see pair.sh)
                       none    no device
  --netem SPEC       `tc netem` on every network device: "delay 2ms loss 2%"
  --mtu BYTES        of the network devices; 4200 gives the path MTU 4096 [4200]
  --limit SECONDS    for the command                                 [120]
  --vm-limit SECONDS for all of the VM                               [--limit + 60]
  --cpus N           [2]            --memory MB     [1024]
  --cpu-model MODEL  of qemu; emulated arm64 is a cortex-a72: no LSE atomics, no SVE
  --files DIR        its contents become /work
  --add PATH[=DEST]  a file or folder, at its own path or at DEST (relative: in /work); repeatable.
                     Libraries that programs among --files and --add need come along by themselves.
  --env NAME=VALUE   set for the command; repeatable
  --python           python3 with its library, and numpy where there is one
  --out DIR          what the command leaves in /out comes back here
  --name NAME        host name of the VM, and the prefix of messages [vm]
  --link SOCKET      --net virtio: unix socket that joins two VMs
  --host 1|2         --net virtio: 1 makes the socket, 2 connects; 10.77.0.1 or .2 [1]
  --console FILE     keep the kernel's console there
  --prepare          download and build what is missing, and start nothing

  The command finds RDMA_DEVICE, RDMA_NETDEV, RDMA_ADDRESS and RDMA_GID_INDEX, the same with a 2 at
  the end for a second device, and RDMA_PEER, the other VM. `gid-index DEVICE` is there, and every
  kernel module in use loads by itself (tc, ip, modprobe).

  Environment: BATON_CACHE (what was downloaded and built; build/rdma-cache), BATON_SKIP_DEPS=1
  (install nothing), BATON_PYTHON (the interpreter for --python; build/venv/bin/python, python3).

exit status: the command's own, and
  77   a VM cannot run here; one line says why
  64   a wrong option
  124  the command or the VM ran into its limit
  125  the VM died, or did not become what was asked for
  A command that a signal ended has 128 + its number, as in any shell.
USAGE
}

set -uo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(cd "$HERE/../.." && pwd)
# shellcheck source=tests/rdma/prepare.sh
. "$HERE/prepare.sh"

say() {
    echo "$NAME: $*" >&2
}

die() {
    say "$*"
    exit 125
}

skip() {
    say "skipped: $*"
    exit 77
}

wrong() {
    say "$* (vm.sh --help)"
    exit 64
}

# ---- options ---------------------------------------------------------------------------------

parse_options() {
    KERNEL=default NET=dummy NETEM='' MTU=4200 LIMIT=120 VM_LIMIT='' CPUS=2 MEMORY=1024 CPU_MODEL=''
    FILES='' ADD=() ENVIRONMENT=() PYTHON=0 OUT='' NAME=vm LINK='' HOST=1 CONSOLE='' PREPARE=0
    while [ $# -gt 0 ]; do
        case $1 in
        --help) usage && exit 0 ;;
        --python) PYTHON=1 && shift && continue ;;
        --prepare) PREPARE=1 && shift && continue ;;
        --) shift && break ;;
        --*) [ $# -ge 2 ] || wrong "$1 needs a value" ;;
        *) break ;;
        esac
        case $1 in
        --kernel) KERNEL=$2 ;;
        --net) NET=$2 ;;
        --netem) NETEM=$2 ;;
        --mtu) MTU=$2 ;;
        --limit) LIMIT=$2 ;;
        --vm-limit) VM_LIMIT=$2 ;;
        --cpus) CPUS=$2 ;;
        --memory) MEMORY=$2 ;;
        --cpu-model) CPU_MODEL=$2 ;;
        --files) FILES=$2 ;;
        --add) ADD+=("$2") ;;
        --env) ENVIRONMENT+=("$2") ;;
        --out) OUT=$2 ;;
        --name) NAME=$2 ;;
        --link) LINK=$2 ;;
        --host) HOST=$2 ;;
        --console) CONSOLE=$2 ;;
        *) wrong "there is no option $1" ;;
        esac
        shift 2
    done
    COMMAND=("$@")
}

check_options() {
    local number
    for number in "$LIMIT" "${VM_LIMIT:-1}" "$CPUS" "$MEMORY" "$MTU"; do
        [[ $number =~ ^[1-9][0-9]{0,6}$ ]] || wrong "$number is not a number that can be meant"
    done
    VM_LIMIT=${VM_LIMIT:-$((LIMIT + 60))}
    [[ $KERNEL =~ ^([0-9]+\.[0-9]+|default)$ ]] || wrong "--kernel $KERNEL is not a series such as 6.12"
    [[ $NAME =~ ^[a-z0-9-]+$ ]] || wrong "--name $NAME is not a host name"
    [[ $NETEM =~ ^[a-z0-9%.\ ]*$ ]] || wrong "--netem $NETEM is not what tc takes"
    case $NET in
    dummy | pair | rails | none) [ -z "$LINK" ] || wrong "--link is for --net virtio" ;;
    virtio) [ -n "$LINK" ] || wrong "--net virtio needs --link (pair.sh starts both VMs)" ;;
    *) wrong "--net $NET is none of dummy, pair, rails, virtio, none" ;;
    esac
    [[ $HOST =~ ^[12]$ ]] || wrong "--host is 1 or 2"
    [ -z "$FILES" ] || [ -d "$FILES" ] || wrong "--files $FILES is no folder"
    [ $PREPARE = 1 ] || [ ${#COMMAND[@]} -gt 0 ] || wrong "no command"
    for number in "${ADD[@]}"; do
        [ -e "${number%%=*}" ] || wrong "--add ${number%%=*}: no such file"
    done
    for number in "${ENVIRONMENT[@]}"; do
        [[ $number =~ ^[A-Za-z_][A-Za-z0-9_]*= ]] || wrong "--env $number is not NAME=VALUE"
    done
}

# ---- the machine -----------------------------------------------------------------------------

# Some hosts have /dev/kvm without the processor's help behind it (guests of guests, with page tables
# in software): a kernel never gets past its decompression there.
kvm_works() {
    [ -r /dev/kvm ] && [ -w /dev/kvm ] || return 1
    [ "$(uname -m)" != x86_64 ] || grep -qwE 'vmx|svm' /proc/cpuinfo
}

# Sets ARCH, MULTIARCH and MACHINE (qemu's program and options) for this host.
choose_machine() {
    local accelerator=tcg,thread=multi model gic=3
    ! kvm_works || accelerator=kvm
    command -v dpkg-query >/dev/null && command -v apt-get >/dev/null ||
        skip "this is no system with apt and dpkg (Debian, Ubuntu)"
    case $(uname -m) in
    aarch64)
        ARCH=arm64 MULTIARCH=aarch64-linux-gnu SERIAL=ttyAMA0
        [ $accelerator != kvm ] || gic=host
        MACHINE=(qemu-system-aarch64 -machine "virt,gic-version=$gic")
        model=cortex-a72 # "max" is four times slower: pointer authentication in software
        ;;
    x86_64)
        ARCH=amd64 MULTIARCH=x86_64-linux-gnu SERIAL=ttyS0
        MACHINE=(qemu-system-x86_64 -machine q35)
        model=max
        ;;
    *) skip "no VM is prepared for a machine of type $(uname -m)" ;;
    esac
    [ $accelerator != kvm ] || model=host
    MACHINE+=(-accel "$accelerator" -cpu "${CPU_MODEL:-$model}" -smp "$CPUS" -m "$MEMORY")
}

prepare_all() {
    local lock
    CACHE=${BATON_CACHE:-$ROOT/build}/rdma-cache
    mkdir -p "$CACHE" 2>/dev/null && [ -w "$CACHE" ] || die "cannot write to $CACHE"
    PATH=$PATH:/usr/sbin:/sbin
    exec {lock}>"$CACHE/lock"
    flock "$lock"
    install_packages
    prepare_kernel "$KERNEL"
    prepare_userland
    PYTHON_IMAGE=
    [ $PYTHON = 0 ] || prepare_python "$(python_interpreter)"
    exec {lock}>&-
    "${MACHINE[0]}" --version >/dev/null 2>&1 || skip "${MACHINE[0]} does not run here"
}

python_interpreter() {
    if [ -n "${BATON_PYTHON:-}" ]; then
        echo "$BATON_PYTHON"
    elif [ -x "$ROOT/build/venv/bin/python" ]; then
        echo "$ROOT/build/venv/bin/python"
    else
        echo python3
    fi
}

# ---- this run's files ------------------------------------------------------------------------

add_path() { # PATH[=DEST]
    local from=${1%%=*} to
    case $1 in
    *=/*) to=$(guest_path "${1#*=}") ;;
    *=*) to=/work/${1#*=} ;;
    *) to=$(guest_path "$(realpath -s "$from")") ;;
    esac
    mkdir -p "$SCRATCH/root${to%/*}"
    cp -rL --preserve=mode,timestamps -T "$from" "$SCRATCH/root$to" || die "cannot copy $from"
}

quote() { # WORD: for any sh
    printf "'%s'" "${1//\'/\'\\\'\'}"
}

write_configuration() {
    local word
    cat >"$SCRATCH/root/etc/vm.conf" <<CONFIGURATION
NET=$NET NETEM='$NETEM' MTU=$MTU LIMIT=$LIMIT HOST=$HOST NAME=$NAME NOW=$(date +%s)
WANT_FILES=$([ -n "$OUT" ] && echo 1 || echo 0)
CONFIGURATION
    for word in "${ENVIRONMENT[@]}"; do
        printf 'export %s=%s\n' "${word%%=*}" "$(quote "${word#*=}")"
    done >"$SCRATCH/root/etc/vm.command"
    if [ ${#COMMAND[@]} -eq 1 ]; then
        printf '%s\n' "${COMMAND[0]}"
    else
        for word in "${COMMAND[@]}"; do printf '%s ' "$(quote "$word")"; done
    fi >>"$SCRATCH/root/etc/vm.command"
}

# Writes SCRATCH/initrd.
build_initrd() {
    local add
    mkdir -p "$SCRATCH"/root/{etc,work}
    [ -z "$FILES" ] || cp -a "$FILES/." "$SCRATCH/root/work/" || die "cannot copy $FILES"
    for add in "${ADD[@]}"; do add_path "$add"; done
    put_libraries "$SCRATCH/root" run || die "cannot copy the libraries that the programs need"
    write_configuration
    pack "$SCRATCH/root" "$SCRATCH/run.cpio" || die "cannot pack this run's files"
    cat "$KERNEL_MODULES" "$USERLAND" ${PYTHON_IMAGE:+"$PYTHON_IMAGE"} "$SCRATCH/run.cpio" \
        >"$SCRATCH/initrd" || die "no space for the VM's files in ${TMPDIR:-/tmp}"
    rm -rf "$SCRATCH/root" "$SCRATCH/run.cpio"
}

# ---- the run ---------------------------------------------------------------------------------

machine_ports() { # NAME...
    local name
    echo -device virtio-serial-pci
    for name in "$@"; do
        echo "-chardev file,id=$name,path=$SCRATCH/$name -device virtserialport,chardev=$name,name=$name"
    done
}

machine_network() {
    [ "$NET" = virtio ] || return 0
    local server=on
    [ "$HOST" = 1 ] || server=off
    echo "-netdev stream,id=wire,server=$server,addr.type=unix,addr.path=$LINK"
    echo "-device virtio-net-pci,netdev=wire,romfile=,mac=52:54:00:77:00:0$HOST"
}

# The other VM makes the socket as soon as it starts.
wait_for_link() {
    [ "$NET" = virtio ] && [ "$HOST" = 2 ] || return 0
    local tries
    for ((tries = 600; tries > 0; tries--)); do
        [ ! -S "$LINK" ] || return 0
        sleep 0.1
    done
    die "the first VM made no socket $LINK in a minute"
}

# The calls that are left out take emulation two seconds: tests of ciphers, and block tracing.
# no_timer_check: x86 counts the timer's ticks at boot and panics where a busy host let none come.
kernel_words() {
    [ "$ARCH" != amd64 ] || echo no_timer_check
    echo "console=$SERIAL quiet panic=-1 oops=panic mitigations=off nokaslr audit=0 cryptomgr.notests" \
        initcall_blacklist=crypto_kdf108_init,init_encrypted,init_blk_tracer
}

# setpriv: the VM must not outlive this script, however that ends.
start_machine() {
    # shellcheck disable=SC2046 # lists of words without spaces
    setpriv --pdeathsig TERM timeout -k 5 "$VM_LIMIT" setpriv --pdeathsig KILL "${MACHINE[@]}" \
        -nodefaults -no-user-config -display none -monitor none -no-reboot \
        -kernel "$KERNEL_IMAGE" -initrd "$SCRATCH/initrd" -serial "file:$CONSOLE" \
        -append "$(kernel_words)" \
        $(machine_ports status output files) $(machine_network) \
        </dev/null >"$SCRATCH/qemu" 2>&1 &
    QEMU=$!
}

status_word() { # EVENT: the rest of its line
    sed -n "s/^$1 //p" "$SCRATCH/status" 2>/dev/null
}

# From a panic on, where there is one: what follows it may be longer than one wants to read.
show_console() {
    tr -d '\r' <"$CONSOLE" | awk '/Kernel panic/ && !at { at = NR } { line[NR] = $0 }
        END { if (!at) at = NR > 30 ? NR - 29 : 1
              for (i = at; i < at + 30 && i <= NR; i++) print line[i] }' |
        sed "s/^/$NAME: console: /" >&2
}

# Turns what the VM said, and how qemu ended, into this script's exit status.
verdict() { # QEMU-STATUS
    local ended failed
    ended=$(status_word ended)
    failed=$(status_word failed)
    if [ -n "$ended" ]; then
        STATUS=${ended%% *}
        [ "$STATUS" = 0 ] || show_console
        [ "$STATUS" != 124 ] || say "the command was stopped at its limit of $LIMIT s"
    elif [ -n "$failed" ]; then
        STATUS=125
        show_console
        say "the VM did not become what was asked for: $failed"
    elif [ "$1" = 124 ] || [ "$1" = 137 ]; then
        STATUS=124
        show_console
        say "the VM was stopped at its limit of $VM_LIMIT s"
    else
        STATUS=125
        show_console
        cat "$SCRATCH/qemu" >&2
        say "the VM died (qemu ended with $1)"
    fi
}

fetch_files() {
    [ -n "$OUT" ] && [ -n "$(status_word ended)" ] || return 0
    tar -x --no-same-owner -f "$SCRATCH/files" -C "$OUT" || die "the files for $OUT did not arrive whole"
}

clean_up() {
    local status=$?
    [ -z "${QEMU:-}" ] || kill "$QEMU" 2>/dev/null
    [ -z "${SCRATCH:-}" ] || rm -rf "$SCRATCH"
    exit $status
}

main() {
    NAME=vm
    parse_options "$@"
    check_options
    choose_machine
    prepare_all
    [ $PREPARE = 0 ] || exit 0
    SCRATCH=$(mktemp -d "${TMPDIR:-/tmp}/baton-vm.XXXXXX") || die "no temporary folder"
    trap clean_up EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    [ -z "$OUT" ] || mkdir -p "$OUT" || die "cannot make $OUT"
    CONSOLE=${CONSOLE:-$SCRATCH/console}
    : >"$CONSOLE" && : >"$SCRATCH/output" || die "cannot write $CONSOLE"
    build_initrd
    wait_for_link
    local began=$SECONDS qemu_status boot
    start_machine
    tail -s 0.1 --pid=$QEMU -n +1 -f "$SCRATCH/output" 2>/dev/null
    wait $QEMU
    qemu_status=$?
    QEMU=
    verdict $qemu_status
    fetch_files
    boot=$(status_word began)
    say "status $STATUS after $((SECONDS - began)) s${boot:+ (the command began at second $boot of the VM)}"
    exit "$STATUS"
}

main "$@"
