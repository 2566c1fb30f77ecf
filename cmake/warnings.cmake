# Warnings are errors in our code; what we include from elsewhere is included as system headers.
# -Wno-restrict: GCC 12 sees overlaps in the concatenation of strings that are not there (its bug 105329).
add_library(headroom_warnings INTERFACE)
target_compile_options(headroom_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Werror -Wno-restrict>
  $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings -Xcompiler=-Wall,-Wextra,-Werror,-Wno-restrict>)

# headroom_library(NAME folder-sources... USES other headroom targets): a static library whose users see this
# folder's headers as "folder/header.h" ("driver/room/header.h" in a room of the driver) and those of what it uses, and no others.
function(headroom_library name)
  cmake_parse_arguments(LIBRARY "" "" "SOURCES;USES;LINKS" ${ARGN})
  add_library(${name} STATIC ${LIBRARY_SOURCES})
  target_link_libraries(${name} PUBLIC ${LIBRARY_USES} PRIVATE headroom_warnings ${LIBRARY_LINKS})
  headroom_view(${name} PUBLIC)
endfunction()

# The same of headers alone.
function(headroom_headers name)
  add_library(${name} INTERFACE)
  headroom_view(${name} INTERFACE)
endfunction()

# Each target sees only its own folder: a link farm with one entry stands in for the common parent.
function(headroom_view name visibility)
  file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  string(REGEX REPLACE "^[^/]+/(.*)$" "\\1" folder ${folder})  # without bench/ or cuda_impl/
  set(view ${CMAKE_BINARY_DIR}/include/${name})
  get_filename_component(parent ${view}/${folder} DIRECTORY)
  file(MAKE_DIRECTORY ${parent})
  file(CREATE_LINK ${CMAKE_CURRENT_SOURCE_DIR} ${view}/${folder} SYMBOLIC)
  target_include_directories(${name} ${visibility} ${view})
endfunction()
