# What comes from the system's packages. Linked statically, so that a build runs on a machine that lacks them.
find_package(Threads REQUIRED)
find_package(nlohmann_json 3.10 REQUIRED)
find_package(CLI11 REQUIRED)

# Debian ships no static fmt: its headers alone serve as well.
find_path(HEADROOM_FMT_INCLUDE fmt/core.h REQUIRED)
add_library(headroom_fmt INTERFACE)
target_include_directories(headroom_fmt SYSTEM INTERFACE ${HEADROOM_FMT_INCLUDE})
target_compile_definitions(headroom_fmt INTERFACE FMT_HEADER_ONLY)

find_path(HEADROOM_VALIJSON_INCLUDE valijson/validator.hpp REQUIRED)
add_library(headroom_valijson INTERFACE)
target_include_directories(headroom_valijson SYSTEM INTERFACE ${HEADROOM_VALIJSON_INCLUDE})
target_compile_definitions(headroom_valijson INTERFACE VALIJSON_USE_EXCEPTIONS=1)

find_path(HEADROOM_ZLIB_INCLUDE zlib.h REQUIRED)
find_library(HEADROOM_ZLIB_LIBRARY libz.a REQUIRED)
add_library(headroom_zlib INTERFACE)
target_include_directories(headroom_zlib SYSTEM INTERFACE ${HEADROOM_ZLIB_INCLUDE})
target_link_libraries(headroom_zlib INTERFACE ${HEADROOM_ZLIB_LIBRARY})

# Debian ships no static Google Benchmark either; a copy of the shared one travels beside the programs.
find_path(HEADROOM_BENCHMARK_INCLUDE benchmark/benchmark.h REQUIRED)
find_library(HEADROOM_BENCHMARK_LIBRARY NAMES libbenchmark.a benchmark REQUIRED)
set(benchmark_library ${HEADROOM_BENCHMARK_LIBRARY})
if(benchmark_library MATCHES "\\.so$")
  get_filename_component(benchmark_file ${benchmark_library} REALPATH)
  get_filename_component(benchmark_soname ${benchmark_library} NAME)
  if(IS_SYMLINK ${benchmark_library})
    file(READ_SYMLINK ${benchmark_library} benchmark_soname)  # libbenchmark.so.1debian
    get_filename_component(benchmark_soname ${benchmark_soname} NAME)
  endif()
  set(benchmark_library ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/${benchmark_soname})
  configure_file(${benchmark_file} ${benchmark_library} COPYONLY)
  list(APPEND CMAKE_BUILD_RPATH "$ORIGIN")
endif()
add_library(headroom_google_benchmark INTERFACE)
target_include_directories(headroom_google_benchmark SYSTEM INTERFACE ${HEADROOM_BENCHMARK_INCLUDE})
target_link_libraries(headroom_google_benchmark INTERFACE ${benchmark_library} Threads::Threads)

if(HEADROOM_TESTS)
  find_package(GTest REQUIRED)
  include(GoogleTest)
endif()
