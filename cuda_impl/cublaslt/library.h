// cuBLASLt as a table of functions, loaded when it is first asked for.
//
// Not linked: where the library is missing the worker has to start all the same and say why the backend is
// unavailable, and a build must not hold the path of the machine it was made on. The dynamic linker finds it
// (LD_LIBRARY_PATH, where the driver puts PyTorch's libraries, or the system's own folders).
#pragma once

#include <cublasLt.h>

#include <string>

namespace headroom::cublaslt {

struct Library {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  decltype(&cublasLtGetVersion) version;
  decltype(&cublasLtGetStatusString) status_string;
  decltype(&cublasLtMatmul) matmul;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristics;
  decltype(&cublasLtMatmulDescCreate) create_operation;
  decltype(&cublasLtMatmulDescDestroy) destroy_operation;
  decltype(&cublasLtMatmulDescSetAttribute) set_operation;
  decltype(&cublasLtMatrixLayoutCreate) create_layout;
  decltype(&cublasLtMatrixLayoutDestroy) destroy_layout;
  decltype(&cublasLtMatmulPreferenceCreate) create_preference;
  decltype(&cublasLtMatmulPreferenceDestroy) destroy_preference;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference;
};

/// The table, or null and the reason in `*missing`.
const Library* find_library(std::string* missing = nullptr);

/// "libcublasLt.so.13": of the major version of the headers, since a later one may lay out its structures in
/// another way.
const char* library_file();

/// "13.0.2"; empty where the library is missing.
std::string library_version();

/// Throws std::runtime_error that shows the call, its place and cuBLASLt's own words.
void check_cublaslt(cublasStatus_t status, const char* call, const char* file, int line);

}  // namespace headroom::cublaslt

#define CUBLASLT_CHECK(call) ::headroom::cublaslt::check_cublaslt((call), #call, __FILE__, __LINE__)
