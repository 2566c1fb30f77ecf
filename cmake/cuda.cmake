# CUDA for the kernels: the toolkit that the front door chose (CUDAToolkit_ROOT, CMAKE_CUDA_COMPILER), its runtime linked
# statically. Portable kernels are compiled for sm_80 with PTX, so that any newer GPU runs them.
set(CMAKE_CUDA_ARCHITECTURES OFF)
enable_language(CUDA)
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
find_package(CUDAToolkit 12.8 REQUIRED)
set(HEADROOM_PORTABLE_TARGETS 80-real 80-virtual 90-real)
