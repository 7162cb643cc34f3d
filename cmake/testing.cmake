# SPDX-License-Identifier: Apache-2.0
# How a test gets its name, its labels and its bounds.
#
# Labels: unit (one part, milliseconds to seconds), conformance (one suite over every backend),
# variant (the same suite with other options; sanitizers only in `make asan` and `make tsan`),
# net (sockets between processes), e2e (programs), slow (left out of `make test`), fuzz (corpus
# replay), house (the tree itself). `make test` runs unit and conformance with sanitizers too;
# leak marks those whose leaks it must see even where LeakSanitizer is slow (scripts/test.sh).
# A test that cannot run here exits with 77 and says why.

# clang's ThreadSanitizer before 18 does not start where the kernel randomises many address bits.
set(BATON_TEST_LAUNCHER)
if(BATON_SANITIZER STREQUAL "thread")
    find_program(BATON_SETARCH setarch)
    if(BATON_SETARCH)
        execute_process(COMMAND ${BATON_SETARCH} -R true RESULT_VARIABLE refused ERROR_QUIET)
        if(NOT refused)
            set(BATON_TEST_LAUNCHER ${BATON_SETARCH} -R)
        endif()
    endif()
endif()

# baton_test_properties(<test> [LABELS unit ...] [TIMEOUT seconds] [SERIAL] [ENVIRONMENT A=b ...])
# SERIAL: nothing else runs beside it (it measures, or takes all cores).
function(baton_test_properties name)
    cmake_parse_arguments(PARSE_ARGV 1 arg "SERIAL" "TIMEOUT" "LABELS;ENVIRONMENT")
    if(NOT arg_LABELS)
        set(arg_LABELS unit)
    endif()
    if(NOT arg_TIMEOUT)
        set(arg_TIMEOUT 60)
    endif()
    if(BATON_SANITIZER)
        math(EXPR arg_TIMEOUT "3 * ${arg_TIMEOUT}")
    endif()
    set_tests_properties(${name} PROPERTIES
        LABELS "${arg_LABELS}"
        TIMEOUT ${arg_TIMEOUT}
        SKIP_RETURN_CODE 77
        RUN_SERIAL ${arg_SERIAL}
        ENVIRONMENT "${arg_ENVIRONMENT};UBSAN_OPTIONS=print_stacktrace=1;TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1;BATON=${PROJECT_BINARY_DIR}/baton;BATON_LIBRARY=${PROJECT_BINARY_DIR}/libbaton.so")
endfunction()

# baton_add_test(<layer>.<unit>[.<case>] [LABELS ...] [TIMEOUT s] [SERIAL] [ENVIRONMENT A=b ...]
#                [SOURCES helper.c ...] [ARGS ...] [PACKAGES PkgConfig::X ...])
#
# tests/<layer>/test_<unit>.c with cmocka, linked to the internals of its layer and those below.
# Several cases of one unit share its program: `transfer.conformance.shm ARGS shm`. A test finds
# the program under test in $BATON and the library in $BATON_LIBRARY.
function(baton_add_test name)
    cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;ARGS;PACKAGES")
    string(REGEX MATCH "^([a-z]+)\\.([a-z0-9_]+)" matched ${name})
    if(NOT matched)
        message(FATAL_ERROR "test ${name}: a name is <layer>.<unit> or <layer>.<unit>.<case>")
    endif()
    set(layer ${CMAKE_MATCH_1})
    set(program test_${layer}_${CMAKE_MATCH_2})
    set(main test_${CMAKE_MATCH_2}.c)
    if(NOT TARGET ${program})
        add_executable(${program} ${main} ${arg_SOURCES})
        if(TARGET baton_${layer})
            target_link_libraries(${program} PRIVATE baton_${layer})
        else() # cli: a program, tested from outside
            target_include_directories(${program} PRIVATE
                ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
        endif()
        target_include_directories(${program} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
        target_link_libraries(${program} PRIVATE
            PkgConfig::CMOCKA ${arg_PACKAGES} Threads::Threads)
    endif()
    add_test(NAME ${name} COMMAND ${BATON_TEST_LAUNCHER} $<TARGET_FILE:${program}> ${arg_ARGS})
    baton_test_properties(${name} ${arg_UNPARSED_ARGUMENTS})
endfunction()

# baton_add_fuzzer(<name> <layer>): fuzz/fuzz_<name>.c. With the preset fuzz it is a libFuzzer
# program; in every other build it replays fuzz/corpus/<name>/ as a test.
function(baton_add_fuzzer name layer)
    set(program fuzz_${name})
    add_executable(${program} ${program}.c)
    target_link_libraries(${program} PRIVATE baton_${layer})
    if(BATON_FUZZ)
        target_link_options(${program} PRIVATE -fsanitize=fuzzer)
        return()
    endif()
    target_sources(${program} PRIVATE replay_main.c)
    add_test(NAME fuzz.${name} COMMAND ${BATON_TEST_LAUNCHER} $<TARGET_FILE:${program}>
        ${CMAKE_CURRENT_SOURCE_DIR}/corpus/${name})
    baton_test_properties(fuzz.${name} LABELS fuzz unit leak)
endfunction()
