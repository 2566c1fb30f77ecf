# headroom_embed(VARIABLE, then ORIGIN NAME FILE for each source): sets VARIABLE to a C++ file that holds these files as
# jit/sources.h describes. The assembler reads them (.incbin): no escapes, no limits, and a change of one file assembles anew.
function(headroom_embed variable)
  set(output ${CMAKE_CURRENT_BINARY_DIR}/embedded.cpp)
  set(assembly "")
  set(declarations "")
  set(table "")
  set(files "")
  set(index 0)
  while(ARGN)
    list(POP_FRONT ARGN origin name file)
    string(APPEND assembly "__asm__(\".section .rodata\\n.global jit_source_${index}\\n.global jit_source_${index}_end\\n\"\n"
      "        \"jit_source_${index}: .incbin \\\"${file}\\\"\\njit_source_${index}_end: .byte 0\\n.previous\\n\");\n")
    string(APPEND declarations "extern const char jit_source_${index}[], jit_source_${index}_end[];\n")
    string(APPEND table "    {\"${name}\", text(jit_source_${index}, jit_source_${index}_end), Source::Origin::${origin}},\n")
    list(APPEND files ${file})
    math(EXPR index "${index} + 1")
  endwhile()
  file(CONFIGURE OUTPUT ${output} @ONLY CONTENT [[
// Made by embed.cmake.
#include "jit/sources.h"

@assembly@
extern "C" {
@declarations@}

namespace headroom::jit {
namespace {

std::string_view text(const char* begin, const char* end) {
  return {begin, static_cast<std::size_t>(end - begin)};
}

}  // namespace

std::span<const Source> embedded_sources() {
  static const Source all[] = {
@table@  };
  return all;
}

}  // namespace headroom::jit
]])
  set_source_files_properties(${output} PROPERTIES OBJECT_DEPENDS "${files}")
  set(${variable} ${output} PARENT_SCOPE)
endfunction()
