// h = silu(gate) * up as float32 and f16, elementwise.
//: in float gate
//: in float up
//: out float hf
//: out half hh
//: int n
const int i = int(threadgroup_position_in_grid.x * threads_per_threadgroup.x +
                  thread_index_in_threadgroup);
if (i < n) {
  const float v = silu(gate[i]) * up[i];
  hf[i] = v;
  hh[i] = to_half(v);
}
