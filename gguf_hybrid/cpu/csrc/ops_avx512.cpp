// Model kernels for AVX-512; the build gives this file that instruction set's flags.
#include "ops_table.inl"

namespace ggh {

const OpsKernels& ops_kernels_avx512() { return avx512::kTable; }

}  // namespace ggh
