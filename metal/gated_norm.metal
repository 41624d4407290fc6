// Prompt form, last part: y = RMS(o) * norm * silu(z) for each head of each token, as float32 and
// f16. A threadgroup of D lanes takes one head.
//: in float o
//: in float z
//: in float norm
//: out float yf
//: out half yh
//: const int D
//: const float EPS
const size_t head = threadgroup_position_in_grid.x;
const int tid = int(thread_index_in_threadgroup), lane = int(thread_index_in_simdgroup);
threadgroup float partial[D / 32];
const size_t at = head * D + tid;
const float squares = simd_sum(o[at] * o[at]);
if (lane == 0) partial[simdgroup_index_in_threadgroup] = squares;
threadgroup_barrier(mem_flags::mem_threadgroup);
float total = 0.0f;
for (int s = 0; s < D / 32; ++s) total += partial[s];
const float v = o[at] * rsqrt(total / float(D) + EPS) * norm[tid] * silu(z[at]);
yf[at] = v;
yh[at] = to_half(v);
