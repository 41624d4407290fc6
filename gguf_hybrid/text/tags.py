"""The tags of the Qwen family that templates write and the parser of replies reads."""

THINK = "<think>"
END_THINK = "</think>"
TOOL_CALL = "<tool_call>"
END_TOOL_CALL = "</tool_call>"
