// The kernel table of one instruction set, for the file of that set to return.
#include "ops_attention.h"
#include "ops_delta.h"
#include "ops_kernels.h"
#include "ops_rows.h"
#include "ops_vocabulary.h"

namespace ggh {
namespace GGH_OPS_ISA {

static const OpsKernels kTable = {
    add_norm,        add,   silu_mul,    delta_head, rope_head,   to_cache, attention_tile,
    attention_block, attention_merge, route, mix_experts, argmax, log_sum_exp, top_k};

}  // namespace GGH_OPS_ISA
}  // namespace ggh
