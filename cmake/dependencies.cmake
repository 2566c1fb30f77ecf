# What comes from the system's packages. Linked statically, so that a build runs on a machine that lacks them.
find_package(Threads REQUIRED)
find_package(nlohmann_json 3.10 REQUIRED)
find_package(CLI11 REQUIRED)

find_path(HEADROOM_VALIJSON_INCLUDE valijson/validator.hpp REQUIRED)
add_library(headroom_valijson INTERFACE)
target_include_directories(headroom_valijson SYSTEM INTERFACE ${HEADROOM_VALIJSON_INCLUDE})
target_compile_definitions(headroom_valijson INTERFACE VALIJSON_USE_EXCEPTIONS=1)

find_path(HEADROOM_ZLIB_INCLUDE zlib.h REQUIRED)
find_library(HEADROOM_ZLIB_LIBRARY libz.a REQUIRED)
add_library(headroom_zlib INTERFACE)
target_include_directories(headroom_zlib SYSTEM INTERFACE ${HEADROOM_ZLIB_INCLUDE})
target_link_libraries(headroom_zlib INTERFACE ${HEADROOM_ZLIB_LIBRARY})

# headroom_travelling_library(NAME HEADER FILE): the library lib<FILE>. Debian ships fmt and Google Benchmark as shared libraries
# alone: a copy of one travels beside the programs.
function(headroom_travelling_library name header file)
  string(TOUPPER ${name} variable)
  find_path(${variable}_INCLUDE ${header} REQUIRED)
  find_library(${variable}_LIBRARY NAMES lib${file}.a ${file} REQUIRED)
  set(library ${${variable}_LIBRARY})
  if(library MATCHES "\\.so$")
    get_filename_component(copied ${library} REALPATH)
    get_filename_component(soname ${library} NAME)
    if(IS_SYMLINK ${library})
      file(READ_SYMLINK ${library} soname)  # libbenchmark.so.1debian, libfmt.so.9
      get_filename_component(soname ${soname} NAME)
    endif()
    set(library ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/${soname})
    configure_file(${copied} ${library} COPYONLY)
  endif()
  add_library(${name} INTERFACE)
  target_include_directories(${name} SYSTEM INTERFACE ${${variable}_INCLUDE})
  target_link_libraries(${name} INTERFACE ${library})
endfunction()
list(APPEND CMAKE_BUILD_RPATH "$ORIGIN")
# Not its headers alone, which would compile the whole of fmt again in each of the driver's files.
headroom_travelling_library(headroom_fmt fmt/core.h fmt)
headroom_travelling_library(headroom_google_benchmark benchmark/benchmark.h benchmark)
target_link_libraries(headroom_google_benchmark INTERFACE Threads::Threads)

if(HEADROOM_TESTS)
  find_package(GTest REQUIRED)
  include(GoogleTest)
endif()
