# SPDX-License-Identifier: Apache-2.0
# libbaton as others see it: one shared library, one header, one pkg-config file. It is made of
# the objects of the three lowest layers; src/transfer/libbaton.map says what it shows.
set(map ${PROJECT_SOURCE_DIR}/src/transfer/libbaton.map)
set(packages)
add_library(libbaton SHARED)
foreach(layer base net transfer)
    target_sources(libbaton PRIVATE $<TARGET_OBJECTS:baton_${layer}>)
    get_target_property(more baton_${layer} BATON_PACKAGES)
    list(APPEND packages ${more})
endforeach()
list(REMOVE_DUPLICATES packages)
target_link_libraries(libbaton PRIVATE ${packages} Threads::Threads)
target_link_options(libbaton PRIVATE -Wl,--version-script=${map})
if(NOT BATON_SANITIZER AND NOT BATON_FUZZ)
    target_link_options(libbaton PRIVATE -Wl,--no-undefined) # sanitizers are resolved later
endif()
# The SONAME changes when the ABI does, the version with every release.
set_target_properties(libbaton PROPERTIES
    OUTPUT_NAME baton
    SOVERSION 0
    VERSION ${PROJECT_VERSION}
    LINKER_LANGUAGE C
    LINK_DEPENDS ${map}
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})

configure_file(cmake/baton.pc.in baton.pc @ONLY)
install(TARGETS libbaton)
install(FILES include/baton.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES ${PROJECT_BINARY_DIR}/baton.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
