// Model kernels for any processor, in four-wide vectors that the compiler lowers.
#define GGH_OPS_PORTABLE 1
#include "ops_table.inl"

namespace ggh {

const OpsKernels& ops_kernels_portable() { return portable::kTable; }

}  // namespace ggh
