// Which table of model kernels goes with the chosen variant of the products.
#include <cstring>

#include "ggh.h"
#include "ops_kernels.h"

namespace ggh {

const OpsKernels& ops_kernels_portable();
#if defined(__x86_64__) || defined(_M_X64)
const OpsKernels& ops_kernels_avx2();
const OpsKernels& ops_kernels_avx512();
#elif defined(__aarch64__)
const OpsKernels& ops_kernels_neon();
#endif

const OpsKernels& ops_kernels() {
  const char* variant = ggh_cpu_variant();
#if defined(__x86_64__) || defined(_M_X64)
  if (std::strcmp(variant, "avx512") == 0) return ops_kernels_avx512();
  if (std::strncmp(variant, "avx2", 4) == 0) return ops_kernels_avx2();
#elif defined(__aarch64__)
  if (std::strcmp(variant, "neon") == 0) return ops_kernels_neon();
#endif
  (void)variant;
  return ops_kernels_portable();
}

}  // namespace ggh
