// Model kernels for AVX2 with FMA; the build gives this file that instruction set's flags.
#include "ops_table.inl"

namespace ggh {

const OpsKernels& ops_kernels_avx2() { return avx2::kTable; }

}  // namespace ggh
