# SPDX-License-Identifier: Apache-2.0
# The libraries that Baton stands on, all by pkg-config. scripts/install-deps.sh installs them.
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)

function(baton_require target)
    pkg_check_modules(${target} IMPORTED_TARGET ${ARGN})
    if(NOT ${target}_FOUND)
        message(FATAL_ERROR "pkg-config does not find ${ARGN}; `make deps` installs it")
    endif()
endfunction()

baton_require(EVENT "libevent_core >= 2.1" libevent_extra libevent_openssl libevent_pthreads)
baton_require(JANSSON "jansson >= 2.13")
baton_require(OPENSSL "openssl >= 3.0")
baton_require(XXHASH libxxhash)
baton_require(PCRE2 libpcre2-8)
baton_require(UTF8PROC libutf8proc)
# Only plugins need these.
pkg_check_modules(IBVERBS IMPORTED_TARGET libibverbs)
pkg_check_modules(UCX IMPORTED_TARGET ucx)
if(BATON_TESTS)
    baton_require(CMOCKA "cmocka >= 1.1.5")
endif()
