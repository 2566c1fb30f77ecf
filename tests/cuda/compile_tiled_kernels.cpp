// Compiles the kernels that the tests of cuda-tiled take, as many side by side as there are cores, into the folder that HEADROOM_TEST_CUBINS
// names. Needs no GPU; the plans are those of an H200.
//   compile_tiled_kernels [WORDS]   only those whose name has these words
//   compile_tiled_kernels --workloads PRECISION NAME...   instead those that these networks are trained by
#include <string>
#include <vector>

#include "compile_side_by_side.h"
#include "core/error.h"
#include "core/workload.h"
#include "jit/cache.h"
#include "jit/compiler.h"
#include "kept_kernels.h"
#include "step_time.h"
#include "tiled/compiled.h"
#include "tiled_cases.h"

namespace headroom {
namespace {

constexpr TiledTarget kH200{.architecture = {.major = 9, .minor = 0}, .sm_count = 132};

void add(NamedKernels& kernels, const std::string& name, Precision precision, const TiledOptions& options) {
  const Workload workload = parse_workload_name(name);
  const jit::Request request = tiled_request(workload, precision, kH200, options);
  // Several cases may share one.
  kernels[std::string(to_string(precision)) + " " + request.kernel] = [=] {
    return jit::compile(request, kH200.architecture, jit::found_compiler(),
                        jit::cubins_in(folder_of_kept_kernels()));
  };
}

int compile_all(const std::vector<std::string>& arguments) {
  NamedKernels all;
  if (arguments.size() > 1 && arguments[0] == "--workloads") {
    for (std::size_t i = 2; i < arguments.size(); ++i)
      add(all, arguments[i], parse_precision(arguments[1]), {});
    return compile_side_by_side(all, "");
  }
  for (const TiledForm& form : kTiledForms)
    for (auto [name, options] : all_tiled_cases(form)) {
      options.portable = form.portable;
      add(all, name, form.precision, options);
    }
  return compile_side_by_side(all, arguments.empty() ? "" : arguments[0]);
}

}  // namespace
}  // namespace headroom

int main(int argc, char** argv) {
  return headroom::run_program("compile_tiled_kernels",
                               [&] { return headroom::compile_all({argv + 1, argv + argc}); });
}
