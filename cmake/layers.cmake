# SPDX-License-Identifier: Apache-2.0
# A layer is a folder of src/ and a static library of the same name. What it may link is in
# src/layers.txt, the same table that the include test reads, so the two cannot drift apart.

# baton_layers(<out>): the names, lowest first.
function(baton_layers out)
    file(STRINGS ${PROJECT_SOURCE_DIR}/src/layers.txt lines REGEX "^[a-z]+:")
    list(TRANSFORM lines REPLACE ":.*" "")
    set(${out} ${lines} PARENT_SCOPE)
endfunction()

# baton_layers_below(<layer> <out>): what the layer may use, as far as it is built.
function(baton_layers_below layer out)
    file(STRINGS ${PROJECT_SOURCE_DIR}/src/layers.txt line REGEX "^${layer}:")
    if(NOT line)
        message(FATAL_ERROR "src/layers.txt does not know the layer ${layer}")
    endif()
    string(REGEX REPLACE "^[a-z]+: *" "" below "${line}")
    string(REPLACE " " ";" below "${below}")
    set(targets)
    foreach(name IN LISTS below)
        if(TARGET baton_${name})
            list(APPEND targets baton_${name})
        endif()
    endforeach()
    set(${out} ${targets} PARENT_SCOPE)
endfunction()

# baton_add_layer(<layer> SOURCES a.c ... [PACKAGES PkgConfig::X ...])
function(baton_add_layer layer)
    cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;PACKAGES")
    add_library(baton_${layer} STATIC ${arg_SOURCES})
    baton_layers_below(${layer} below)
    target_include_directories(baton_${layer} PUBLIC
        ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(baton_${layer} PUBLIC ${below} ${arg_PACKAGES} Threads::Threads)
    set_target_properties(baton_${layer} PROPERTIES BATON_PACKAGES "${arg_PACKAGES}")
endfunction()

# baton_add_plugin(<name> SOURCES a.c ... PACKAGES PkgConfig::X): libbaton_<name>.so, opened at run time
# (src/transfer/plugin.h). Without its package it is not built, and `baton info` says what is missing.
function(baton_add_plugin name)
    cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;PACKAGES")
    foreach(package IN LISTS arg_PACKAGES)
        if(NOT TARGET ${package})
            message(STATUS "plugin ${name} is not built: ${package} was not found")
            return()
        endif()
    endforeach()
    add_library(baton_plugin_${name} MODULE ${arg_SOURCES})
    target_include_directories(baton_plugin_${name} PRIVATE
        ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(baton_plugin_${name} PRIVATE ${arg_PACKAGES} Threads::Threads)
    set_target_properties(baton_plugin_${name} PROPERTIES
        OUTPUT_NAME baton_${name} LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
    install(TARGETS baton_plugin_${name} DESTINATION ${CMAKE_INSTALL_LIBDIR})
endfunction()

# baton_add_program(<name> SOURCES a.c ... [PACKAGES ...]): the topmost layer, cli, is a program.
# It carries everything below it, so that one file can be copied to another machine.
function(baton_add_program name)
    cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;PACKAGES")
    add_executable(baton_program ${arg_SOURCES})
    baton_layers_below(cli below)
    target_link_libraries(baton_program PRIVATE ${below} ${arg_PACKAGES})
    set_target_properties(baton_program PROPERTIES
        OUTPUT_NAME ${name} RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
    install(TARGETS baton_program)
endfunction()
