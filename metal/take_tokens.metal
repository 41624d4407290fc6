// Tokens of a step that the host has not seen: where source[i] >= 0, token i is what the step before
// picked for its row source[i] (0 for a row without a pick, whose result nobody will read).
//: in int source
//: in int picks
//: out int tokens
//: int n
const int i = int(thread_index_in_threadgroup);
if (i < n && source[i] >= 0) tokens[i] = max(picks[source[i]], 0);
