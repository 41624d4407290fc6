// Model kernels for ARMv8.2 NEON; the build gives this file that instruction set's flags.
#include "ops_table.inl"

namespace ggh {

const OpsKernels& ops_kernels_neon() { return neon::kTable; }

}  // namespace ggh
