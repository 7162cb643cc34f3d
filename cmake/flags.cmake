# SPDX-License-Identifier: Apache-2.0
# How everything is compiled: the language, the warnings, the hardening of a release and the
# sanitizers. No -march and no -ffast-math anywhere: packages run on any machine of the
# architecture, and the order of sums is part of the contract.
set(CMAKE_C_STANDARD 17)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS ON)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
include(CheckPIESupported)
check_pie_supported(LANGUAGES C)

if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "Debug or RelWithDebInfo" FORCE)
endif()
set(CMAKE_C_FLAGS_DEBUG "-Og -g3")
# Without -DNDEBUG: assertions stay in the release.
set(CMAKE_C_FLAGS_RELWITHDEBINFO "-O2 -g")
if(BATON_SANITIZER) # built to be run once: line numbers are all that a report needs
    set(CMAKE_C_FLAGS_RELWITHDEBINFO "-O1 -g1")
    if(CMAKE_C_COMPILER_ID STREQUAL "GNU") # it guesses lengths, and without -O2 it guesses wrong
        add_compile_options(-Wno-format-truncation -Wno-maybe-uninitialized)
    endif()
endif()

# Baton is for Linux, and uses it. Empty rather than 1, so that a file may say so again itself.
add_compile_definitions(_GNU_SOURCE=)
add_compile_options(-Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes)
if(BATON_WERROR)
    add_compile_options(-Werror)
endif()

if(BATON_SANITIZER STREQUAL "address")
    set(sanitize -fsanitize=address,undefined -fno-sanitize-recover=undefined)
elseif(BATON_SANITIZER STREQUAL "thread")
    set(sanitize -fsanitize=thread)
elseif(BATON_SANITIZER STREQUAL "")
    set(sanitize)
else()
    message(FATAL_ERROR "BATON_SANITIZER is \"${BATON_SANITIZER}\"; use address, thread or nothing")
endif()

if(BATON_FUZZ)
    if(NOT CMAKE_C_COMPILER_ID MATCHES "Clang")
        message(FATAL_ERROR "libFuzzer comes with clang: use the preset `fuzz`, or CC=clang")
    endif()
    list(APPEND sanitize -fsanitize=fuzzer-no-link)
endif()

if(sanitize)
    add_compile_options(${sanitize} -fno-omit-frame-pointer)
    add_link_options(${sanitize})
elseif(CMAKE_BUILD_TYPE STREQUAL "RelWithDebInfo")
    add_compile_options(-fstack-protector-strong -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2)
    add_link_options(-Wl,-z,relro,-z,now -Wl,-z,noexecstack)
endif()
