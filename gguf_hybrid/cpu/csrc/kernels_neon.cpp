#include "simd_neon.h"

#include "kernels.inl"

namespace ggh {

const Kernels& kernels_neon() {
  static const Kernels table = neon::make_kernels();
  return table;
}

}  // namespace ggh
