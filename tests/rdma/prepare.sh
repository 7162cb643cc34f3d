# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# What a VM is made of, fetched and built once and kept in a cache: Debian's (or Ubuntu's) own kernel
# with the few modules that Soft-RoCE needs, and a small userland out of the host's packages. Sourced
# by vm.sh, which says how the pieces boot.
#
#   CACHE/kernel-ARCH-VERSION/      vmlinuz, and modules.cpio: /lib/modules/VERSION, uncompressed
#   CACHE/userland-HASH.cpio, .list     programs, verbs providers, UCX modules; HASH names what went in
#   CACHE/python-HASH.cpio              an interpreter, its library, numpy where there is one
#
# Images are archives without compression: a kernel under emulation unpacks them by copying, where
# decompression takes it seconds. The kernel appends archives to each other, so a VM's initial
# file system is kernel's + userland's + what this run brings.
#
# Everything here runs under one lock, so that several VMs may start at once on one cache.

# The host's own tools and what the userland is copied from.
packages_of() { # ARCH
    case $1 in
    arm64) echo qemu-system-arm ;;
    amd64) echo qemu-system-x86 ;;
    esac
    echo busybox-static kmod cpio xz-utils zstd iproute2 util-linux
    echo ibverbs-utils ibverbs-providers rdmacm-utils perftest ucx-utils
}

missing_packages() {
    local installed package
    installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "$@" 2>/dev/null)
    for package in "$@"; do
        grep -qxF "installed $package" <<<"$installed" || echo "$package"
    done
}

apt() { # ARGUMENTS: quiet, patient with another apt-get that holds the lock
    DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 "$@" \
        </dev/null >>"$CACHE/apt.log" 2>&1
}

apt_update_once() {
    [ -z "${apt_updated:-}" ] || return 0
    apt_updated=1
    apt update || true # a stale index may still do; what uses it says what is missing
}

may_install() {
    [ "${BATON_SKIP_DEPS:-0}" != 1 ] && [ "$(id -u)" -eq 0 ]
}

install_packages() {
    local missing
    # shellcheck disable=SC2046 # a list of words
    mapfile -t missing < <(missing_packages $(packages_of "$ARCH"))
    [ ${#missing[@]} -gt 0 ] || return 0
    may_install || skip "these packages are missing (BATON_SKIP_DEPS=1, or not root): ${missing[*]}"
    say "installing ${missing[*]}"
    apt_update_once
    apt install -y --no-install-recommends "${missing[@]}" ||
        skip "apt-get cannot install ${missing[*]} (see $CACHE/apt.log)"
}

# ---- kernel ----------------------------------------------------------------------------------

# The package behind a kernel series. `default` is the distribution's own. Names with a flavour
# ("cloud", "kvm") are left alone: those kernels have no rdma_rxe. One question for all names,
# because apt-cache may take seconds.
kernel_package() { # SERIES ARCH
    local series=$1 found
    [ "$1" != default ] || series='[0-9]+'
    found=$(apt-cache depends "linux-image-$1-$2" "linux-image-$2" linux-image-generic \
        "linux-image-generic-hwe-24.04" 2>/dev/null |
        awk '$1 == "Depends:" && $2 ~ /^linux-image-[0-9]/ { print $2 }' |
        grep -m 1 -E "^linux-image-${series}[.-]")
    [ -n "$found" ] && echo "$found"
}

# Ubuntu splits a kernel into three packages, Debian has one.
kernel_packages_beside() { # linux-image-VERSION
    apt-cache pkgnames linux-modules | grep -xE "linux-modules(-extra)?-${1#linux-image-}"
}

download_kernel() { # DIR PACKAGE
    local beside
    mapfile -t beside < <(kernel_packages_beside "$2")
    say "downloading ${*:2} ${beside[*]}"
    (cd "$1" && apt download "$2" "${beside[@]}") || return 1
    local deb
    for deb in "$1"/*.deb; do # only what may be of use: the whole is 350 MB
        dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$1" --wildcards --no-anchored \
            'boot/vmlinuz-*' 'lib/modules/*/modules.*' 'lib/modules/*/kernel/drivers/infiniband/*' \
            'lib/modules/*/kernel/net/*' 'lib/modules/*/kernel/drivers/net/*' \
            'lib/modules/*/kernel/drivers/virtio/*' 'lib/modules/*/kernel/drivers/char/*' \
            'lib/modules/*/kernel/fs/configfs/*' 'lib/modules/*/kernel/crypto/*' \
            'lib/modules/*/kernel/lib/*' 'lib/modules/*/kernel/arch/*/crypto/*' 2>/dev/null || true # not all are in each package
    done
    rm -f "$1"/*.deb
    compgen -G "$1/boot/vmlinuz-*" >/dev/null
}

# The modules that the guest may ask for, with what they need. crc32_generic: rxe asks the crypto
# interface for "crc32" by name, which no module dependency shows.
wanted_modules=(virtio_pci virtio_console virtio_net rdma_rxe rdma_ucm ib_umad crc32_generic dummy
    veth sch_netem sch_prio cls_u32)

copy_module() { # FILE DESTINATION-FOLDER: never compressed
    local name=${1##*/}
    case $name in
    *.ko.xz) xz -dc "$1" >"$2/${name%.xz}" ;;
    *.ko.zst) zstd -qdc "$1" >"$2/${name%.zst}" ;;
    *.ko) cp "$1" "$2/" ;;
    esac
}

build_modules_image() { # DIR VERSION
    local modules=$1/image/usr/lib/modules/$2 name file
    mkdir -p "$modules"
    depmod -b "$1" "$2" 2>/dev/null
    for name in "${wanted_modules[@]}"; do
        modprobe -d "$1" -S "$2" --show-depends "$name" 2>/dev/null |
            awk '$1 == "insmod" { print $2 }'
    done | sort -u | while read -r file; do copy_module "$file" "$modules"; done
    cp "$1/lib/modules/$2"/modules.{builtin*,order} "$modules/" 2>/dev/null
    [ -e "$modules/rdma_rxe.ko" ] || return 1
    ln -s usr/lib "$1/image/lib"
    depmod -b "$1/image" "$2"
    rm "$1/image/lib"
    pack "$1/image" "$1/modules.cpio"
}

# Downloads a package and makes CACHE/kernel-ARCH-VERSION of it.
build_kernel() { # PACKAGE
    local scratch version folder=$CACHE/kernel-$ARCH-${1#linux-image-}
    [ ! -e "$folder/modules.cpio" ] || return 0
    scratch=$(mktemp -d "$CACHE/.kernel.XXXXXX")
    download_kernel "$scratch" "$1" || {
        rm -rf "$scratch"
        skip "cannot download $1 (see $CACHE/apt.log)"
    }
    [ -d "$scratch/lib/modules" ] || ln -s usr/lib "$scratch/lib" # packages for a merged /usr
    version=$(basename "$scratch"/lib/modules/*)
    mv "$scratch"/boot/vmlinuz-* "$scratch/vmlinuz"
    build_modules_image "$scratch" "$version" || {
        rm -rf "$scratch"
        skip "the kernel $1 has no module rdma_rxe"
    }
    rm -rf "${scratch:?}"/{boot,lib,usr,image}
    chmod a+rx "$scratch"
    rm -rf "$folder"
    mv "$scratch" "$folder"
}

# Sets KERNEL_IMAGE and KERNEL_MODULES. A series stays with the version that it had first, without a
# question to apt, until the cache is removed.
prepare_kernel() { # SERIES
    local package link=$CACHE/kernel-$ARCH-$1
    if [ ! -e "$link/modules.cpio" ]; then
        package=$(kernel_package "$1" "$ARCH") ||
            { may_install && apt_update_once && package=$(kernel_package "$1" "$ARCH"); } ||
            skip "apt has no kernel $1 for $ARCH"
        build_kernel "$package"
        ln -sfn "kernel-$ARCH-${package#linux-image-}" "$link"
    fi
    KERNEL_IMAGE=$link/vmlinuz
    KERNEL_MODULES=$link/modules.cpio
}

# ---- userland --------------------------------------------------------------------------------

pack() { # FOLDER ARCHIVE
    (cd "$1" && find . -mindepth 1 -print0 |
        cpio --null -o -H newc --quiet --owner=0:0) >"$2.new" && mv "$2.new" "$2"
}

# Keeps the few that checkouts of different ages may be using in turn.
prune() { # KIND
    local old
    find "$CACHE" -maxdepth 1 -name "$1-*.cpio" -printf '%T@ %p\n' | sort -rn | tail -n +5 |
        while read -r _ old; do rm -f "$old" "${old%.cpio}.list"; done
}

libraries_of() { # FILE...: every shared library that they need, as the host's loader finds them
    local file
    for file in "$@"; do ldd "$file" 2>/dev/null; done |
        awk '$2 == "=>" && $3 ~ /^\// { print $3 }
             $1 ~ /^\// && $2 ~ /^\(0x/ { print $1 }' | sort -u
}

# Where a file of the host belongs in the guest, whose /bin, /sbin and /lib are links into /usr.
guest_path() { # ABSOLUTE-PATH
    case $1 in
    /bin/* | /sbin/* | /lib/* | /lib64/*) echo "/usr$1" ;;
    *) echo "$1" ;;
    esac
}

put() { # ROOT FILE...: at their own places, links resolved
    local root=$1 file place
    shift
    for file in "$@"; do
        place=$root$(guest_path "$file")
        [ ! -e "$place" ] || continue
        mkdir -p "${place%/*}"
        cp -L "$file" "$place" || return 1
    done
}

# busybox fills the gaps, but sh, env and timeout must not be its: Debian's busybox prefers its own
# applets whatever PATH says, and its `ip` knows neither veth peers nor netem.
guest_programs=(dash bash env timeout nice nohup setsid setpriv stdbuf taskset flock ip tc rdma kmod
    ldconfig pkill pgrep ibv_devices ibv_devinfo ibv_rc_pingpong ibv_uc_pingpong ibv_ud_pingpong
    ibv_srq_pingpong rping ucmatose rdma_client rdma_server ib_write_bw ib_write_lat ib_read_bw
    ib_read_lat ib_send_bw ib_send_lat ucx_info ucx_perftest strace gdbserver)

userland_sources() { # prints programs and what is opened by dlopen, which ldd does not show
    local name multiarch=/usr/lib/$MULTIARCH
    for name in "${guest_programs[@]}"; do
        name=$(command -v "$name") && guest_path "$name"
    done
    [ ! -e /sbin/ldconfig.real ] || echo /usr/sbin/ldconfig.real # Ubuntu's ldconfig is a script
    compgen -G "$multiarch/libibverbs/librxe-rdmav*.so"
    compgen -G "$multiarch/ucx/libu*.so.0" | grep -vE 'cuda|rocm|gdr|_ze'
    compgen -G "$multiarch/lib{ibverbs,rdmacm,stdc++,gcc_s,nss_files,nss_dns,resolv,pthread,dl,rt}.so.[0-9]"
}

userland_hash() {
    {
        cat "$HERE/prepare.sh" "$HERE"/guest/*
        # shellcheck disable=SC2046
        dpkg-query -W -f '${Package} ${Version}\n' $(packages_of "$ARCH") libc6 libstdc++6 strace \
            gdbserver libibverbs1 libucx0 2>/dev/null || true
    } | sha256sum | cut -c1-16
}

build_userland() { # ROOT
    local root=$1 sources libraries applet
    mkdir -p "$root"/usr/{bin,sbin,lib,lib64} "$root"/{proc,sys,dev,etc,tmp,run,root,var/tmp,work,out}
    ln -s usr/bin usr/sbin usr/lib usr/lib64 "$root/"
    mapfile -t sources < <(userland_sources)
    mapfile -t libraries < <(libraries_of "${sources[@]}")
    put "$root" "${sources[@]}" "${libraries[@]}" "$(command -v busybox)" \
        /etc/libibverbs.d/rxe.driver || return 1
    for applet in $(busybox --list); do
        [ -e "$root/usr/bin/$applet" ] || [ -e "$root/usr/sbin/$applet" ] ||
            ln -s busybox "$root/usr/bin/$applet"
    done
    ln -sf dash "$root/usr/bin/sh"
    for applet in modprobe insmod lsmod; do
        rm -f "$root"/usr/{bin,sbin}/$applet
        ln -s ../bin/kmod "$root/usr/sbin/$applet"
    done
    echo 'root:x:0:0:root:/root:/bin/sh' >"$root/etc/passwd"
    echo 'root:x:0:' >"$root/etc/group"
    printf '127.0.0.1 localhost\n::1 localhost\n' >"$root/etc/hosts"
    echo 'hosts: files' >"$root/etc/nsswitch.conf"
    echo 'include /etc/ld.so.conf.d/*.conf' >"$root/etc/ld.so.conf"
    mkdir -p "$root/etc/ld.so.conf.d"
    cp /etc/ld.so.conf.d/*.conf "$root/etc/ld.so.conf.d/"
    mkdir -p "$root/etc/modprobe.d"
    echo 'options dummy numdummies=0' >"$root/etc/modprobe.d/dummy.conf"
    cp "$HERE"/guest/{cases,falls-back,gid-index,nodes,run-suites,wire} "$root/usr/bin/"
    cp "$HERE/guest/init" "$root/init"
    ldconfig -r "$root"
}

# Sets USERLAND, and USERLAND_LIST: the files that are in it.
prepare_userland() {
    local root
    USERLAND=$CACHE/userland-$(userland_hash).cpio
    USERLAND_LIST=${USERLAND%.cpio}.list
    [ ! -e "$USERLAND" ] || { touch "$USERLAND" && return; }
    root=$(mktemp -d "$CACHE/.userland.XXXXXX")
    chmod a+rx "$root"
    build_userland "$root" && (cd "$root" && find . -type f -o -type l) | sed 's/^\.//' >"$USERLAND_LIST" &&
        pack "$root" "$USERLAND" || die "cannot build $USERLAND"
    rm -rf "$root"
    prune userland
}

# ---- Python ----------------------------------------------------------------------------------

# Prints what an interpreter is made of: its program, its library with the extension modules (their
# libraries come by ldd), the folder for packages, and where numpy is. A virtual environment's is
# that of the interpreter behind it.
python_pieces() { # INTERPRETER
    local program
    program=$("$1" -c 'import os, sys; print(os.path.realpath(sys.executable))') || return 1
    echo "program $program"
    "$program" -c 'import sysconfig as s; print("library", s.get_path("stdlib")); print("packages", s.get_path("purelib"))'
    "$1" -c 'import numpy, os; print("numpy", os.path.dirname(os.path.dirname(numpy.__file__)), numpy.__version__)' \
        2>/dev/null || true
}

build_python() { # ROOT PIECES
    local root=$1 program library packages numpy_home without
    program=$(sed -n 's/^program //p' <<<"$2")
    library=$(sed -n 's/^library //p' <<<"$2")
    packages=$root$(sed -n 's/^packages //p' <<<"$2")
    numpy_home=$(sed -n 's/^numpy \(.*\) .*/\1/p' <<<"$2")
    without=(--exclude=test --exclude=tests --exclude='*.opt-*.pyc' --exclude='*.a' --exclude='*.pyi'
        --exclude='_test*.so' --exclude='_tkinter*' --exclude=tkinter --exclude=idlelib
        --exclude=ensurepip --exclude=lib2to3 --exclude=pydoc_data --exclude='config-*')
    mkdir -p "$root/usr/bin" "$root$library" "$packages"
    put "$root" "$program" || return 1
    [ -e "$root/usr/bin/python3" ] || ln -s "$program" "$root/usr/bin/python3"
    tar -C "$library" -c "${without[@]}" --exclude=./site-packages --exclude=./dist-packages . |
        tar -C "$root$library" -x || return 1
    [ -z "$numpy_home" ] || (cd "$numpy_home" && tar -c "${without[@]}" --exclude=f2py numpy numpy.libs 2>/dev/null) |
        tar -C "$packages" -x
}

# Sets PYTHON_IMAGE.
prepare_python() { # INTERPRETER
    local pieces root
    pieces=$(python_pieces "$1") || die "$1 does not run"
    PYTHON_IMAGE=$CACHE/python-$({
        cat "$HERE/prepare.sh"
        echo "$pieces"
        stat -L -c %Y "$(sed -n 's/^program //p' <<<"$pieces")"
    } | sha256sum | cut -c1-16).cpio
    [ ! -e "$PYTHON_IMAGE" ] || { touch "$PYTHON_IMAGE" && return; }
    root=$(mktemp -d "$CACHE/.python.XXXXXX")
    chmod a+rx "$root"
    build_python "$root" "$pieces" && put_libraries "$root" python && pack "$root" "$PYTHON_IMAGE" ||
        die "cannot build $PYTHON_IMAGE"
    rm -rf "$root"
    prune python
}

# ---- what a run brings ------------------------------------------------------------------------

elf_files() { # ROOT
    local file
    find "$1" -type f -size +63c \( -perm /111 -o -name '*.so' -o -name '*.so.*' \) -print0 |
        while IFS= read -r -d '' file; do
            [ "$(head -c 4 "$file" | tail -c 3)" != ELF ] || printf '%s\n' "$file"
        done
}

# Adds the libraries that the programs under ROOT need and the userland lacks. Folders where the
# guest's loader would not look are named in its configuration.
put_libraries() { # ROOT NAME
    local root=$1 name=$2 files library missing
    mapfile -t files < <(elf_files "$root")
    [ ${#files[@]} -gt 0 ] || return 0
    for library in "${files[@]}"; do
        missing=$(ldd "$library" 2>/dev/null | awk '/=> not found/ { print $1 }' | xargs)
        [ -z "$missing" ] || say "warning: ${library#"$root"} needs $missing, which is not found here"
    done
    libraries_of "${files[@]}" | while read -r library; do
        [[ $library != "$root"/* ]] || continue
        library=$(guest_path "$library")
        grep -qxF "$library" "$USERLAND_LIST" || put "$root" "$library" || return 1
        case ${library%/*} in
        /usr/lib | /usr/lib64 | /usr/lib/"$MULTIARCH") ;;
        *) mkdir -p "$root/etc/ld.so.conf.d" && echo "${library%/*}" >>"$root/etc/ld.so.conf.d/$name.conf" ;;
        esac
    done
}
