// Model kernels for portable; the build gives this file that instruction set's flags.
#include "ops_table.inl"

namespace ggh {

const OpsKernels& ops_kernels_portable() { return portable::kTable; }

}  // namespace ggh
