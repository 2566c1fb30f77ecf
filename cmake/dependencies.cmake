# What comes from the system's packages. Linked statically, so that a build runs on a machine that lacks them.
find_package(Threads REQUIRED)
find_package(nlohmann_json 3.10 REQUIRED)
find_package(CLI11 REQUIRED)

find_path(HEADROOM_FMT_INCLUDE fmt/core.h REQUIRED)
find_library(HEADROOM_FMT_LIBRARY libfmt.a REQUIRED)
add_library(headroom_fmt INTERFACE)
target_include_directories(headroom_fmt SYSTEM INTERFACE ${HEADROOM_FMT_INCLUDE})
target_link_libraries(headroom_fmt INTERFACE ${HEADROOM_FMT_LIBRARY})

find_path(HEADROOM_ZLIB_INCLUDE zlib.h REQUIRED)
find_library(HEADROOM_ZLIB_LIBRARY libz.a REQUIRED)
add_library(headroom_zlib INTERFACE)
target_include_directories(headroom_zlib SYSTEM INTERFACE ${HEADROOM_ZLIB_INCLUDE})
target_link_libraries(headroom_zlib INTERFACE ${HEADROOM_ZLIB_LIBRARY})

find_path(HEADROOM_BENCHMARK_INCLUDE benchmark/benchmark.h REQUIRED)
find_library(HEADROOM_BENCHMARK_LIBRARY libbenchmark.a REQUIRED)
add_library(headroom_google_benchmark INTERFACE)
target_include_directories(headroom_google_benchmark SYSTEM INTERFACE ${HEADROOM_BENCHMARK_INCLUDE})
target_link_libraries(headroom_google_benchmark INTERFACE ${HEADROOM_BENCHMARK_LIBRARY} Threads::Threads)

if(HEADROOM_TESTS)
  find_package(GTest REQUIRED)
  include(GoogleTest)
endif()
