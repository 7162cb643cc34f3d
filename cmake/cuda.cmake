# SPDX-License-Identifier: Apache-2.0
# CUDA is optional twice: it must be asked for (BATON_CUDA), and nvcc must be there. GPU code will
# be a plugin that is opened at run time, so the plain build never depends on it.
if(BATON_CUDA)
    include(CheckLanguage)
    check_language(CUDA)
    if(CMAKE_CUDA_COMPILER)
        message(STATUS "CUDA: ${CMAKE_CUDA_COMPILER} found; there are no .cu files yet to build")
    else()
        message(STATUS "CUDA: no nvcc here; building without (there are no .cu files yet)")
    endif()
endif()
