// NVRTC, loaded by its path. It knows no standard library: stand-ins for the few headers that device code includes are
// among the embedded sources, and so are the toolkit's headers of 16-bit formats.
#include <dlfcn.h>

#include <fstream>
#include <iterator>

#include "jit/compiler.h"
#include "jit/digest.h"
#include "jit/sources.h"

namespace headroom::jit {
namespace {

namespace fs = std::filesystem;

/// The part of NVRTC's interface that is used here. Its functions return 0 if all went well.
struct Interface {
  using Program = void*;
  int (*version)(int* major, int* minor);
  const char* (*error_text)(int result);
  int (*create)(Program* program, const char* source, const char* name, int headers, const char* const* texts,
                const char* const* names);
  int (*destroy)(Program* program);
  int (*add_name)(Program program, const char* expression);
  int (*compile)(Program program, int options, const char* const* texts);
  int (*log_size)(Program program, std::size_t* size);
  int (*log)(Program program, char* log);
  int (*cubin_size)(Program program, std::size_t* size);
  int (*cubin)(Program program, char* cubin);
};

std::string digest_of_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  if (bytes.empty()) throw std::runtime_error(path.string() + ": cannot be read");
  return sha256(bytes);
}

class Nvrtc final : public Compiler {
 public:
  explicit Nvrtc(const fs::path& library) {
    if (!library.is_absolute())
      throw std::runtime_error(library.string() + ": expected an absolute path of NVRTC");
    // Never closed: what it has started goes on until the process ends.
    void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) throw std::runtime_error(std::string("NVRTC: ") + dlerror());
    const auto load = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
      if (function == nullptr) throw std::runtime_error(library.string() + ": has no " + name);
    };
    load(nvrtc_.version, "nvrtcVersion");
    load(nvrtc_.error_text, "nvrtcGetErrorString");
    load(nvrtc_.create, "nvrtcCreateProgram");
    load(nvrtc_.destroy, "nvrtcDestroyProgram");
    load(nvrtc_.add_name, "nvrtcAddNameExpression");
    load(nvrtc_.compile, "nvrtcCompileProgram");
    load(nvrtc_.log_size, "nvrtcGetProgramLogSize");
    load(nvrtc_.log, "nvrtcGetProgramLog");
    load(nvrtc_.cubin_size, "nvrtcGetCUBINSize");
    load(nvrtc_.cubin, "nvrtcGetCUBIN");
    int major = 0, minor = 0;
    check(nvrtc_.version(&major, &minor), "nvrtcVersion");
    name_ = "NVRTC " + std::to_string(major) + "." + std::to_string(minor);
    if (major < 13 || (major == 13 && minor < 1))
      throw std::runtime_error(library.string() + ": is " + name_ + "; 13.1 or newer is needed");
    // It does not say its patch level, so two builds of one version differ by their files only.
    identity_ = name_ + " " + digest_of_file(library);
    const fs::path builtins = library.parent_path() /
                              ("libnvrtc-builtins.so." + std::to_string(major) + "." + std::to_string(minor));
    if (std::error_code ignored; fs::exists(builtins, ignored)) identity_ += " " + digest_of_file(builtins);
    for (const Source& source : embedded_sources()) {
      names_.push_back(source.name.data());
      texts_.push_back(source.text.data());
    }
  }
  const std::string& name() const override { return name_; }
  const std::string& identity() const override { return identity_; }

  Cubin compile(const Request& request, const Architecture& architecture) const override {
    const std::string source = program_text(request), arch = "-arch=" + architecture.name();
    Program program(nvrtc_);
    check(nvrtc_.create(&program.handle, source.c_str(), "kernel.cu", static_cast<int>(names_.size()),
                        texts_.data(), names_.data()),
          "nvrtcCreateProgram");
    check(nvrtc_.add_name(program.handle, request.kernel.c_str()), "nvrtcAddNameExpression");
    // -default-device: lambdas that take `auto` are refused in device functions otherwise. cmath: nvcc includes it without
    // being asked.
    std::vector<const char*> options = {
        arch.c_str(), "-std=c++20",          "-DNDEBUG",           "-default-device",
        "-no-cache",  "--pre-include=cmath", "--ptxas-options=-v", "--ptxas-options=-warn-spills"};
    for (const std::string& option : request.options) options.push_back(option.c_str());
    const int result = nvrtc_.compile(program.handle, static_cast<int>(options.size()), options.data());
    std::size_t size = 0;
    check(nvrtc_.log_size(program.handle, &size), "nvrtcGetProgramLogSize");
    std::string log(size, '\0');
    check(nvrtc_.log(program.handle, log.data()), "nvrtcGetProgramLog");
    if (const std::size_t end = log.find('\0'); end != log.npos) log.resize(end);
    if (result != 0) throw internal::failed(request, name_, log.empty() ? nvrtc_.error_text(result) : log);
    Cubin cubin;
    internal::read_log(request, log, cubin);
    check(nvrtc_.cubin_size(program.handle, &size), "nvrtcGetCUBINSize");
    cubin.bytes.resize(size);
    check(nvrtc_.cubin(program.handle, cubin.bytes.data()), "nvrtcGetCUBIN");
    return cubin;
  }

 private:
  struct Program {
    explicit Program(const Interface& interface) : nvrtc(interface) {}
    ~Program() {
      if (handle != nullptr) (void)nvrtc.destroy(&handle);
    }
    Program(const Program&) = delete;
    Program& operator=(const Program&) = delete;
    const Interface& nvrtc;
    Interface::Program handle = nullptr;
  };

  void check(int result, const char* call) const {
    if (result != 0) throw std::runtime_error(std::string(call) + ": " + nvrtc_.error_text(result));
  }

  Interface nvrtc_{};
  std::string name_, identity_;
  std::vector<const char*> names_, texts_;
};

}  // namespace

std::unique_ptr<Compiler> make_nvrtc(const fs::path& library) { return std::make_unique<Nvrtc>(library); }

}  // namespace headroom::jit
