// The splits of `attend_blocks` joined in their order. A threadgroup of D lanes takes one head.
//: in float part_o
//: in float part_ml
//: out float y
//: int n_splits
//: const int D
//: const int NH
const int head = int(threadgroup_position_in_grid.x), tid = int(thread_index_in_threadgroup);
float highest = -3.0e38f;
for (int s = 0; s < n_splits; ++s) highest = fmax(highest, part_ml[2 * (s * NH + head)]);
float sum = 0.0f, mass = 0.0f;
for (int s = 0; s < n_splits; ++s) {
  const int at = s * NH + head;
  const float weight = exp(part_ml[2 * at] - highest);
  mass += weight * part_ml[2 * at + 1];
  sum += weight * part_o[(size_t)at * D + tid];
}
y[head * D + tid] = sum / mass;
