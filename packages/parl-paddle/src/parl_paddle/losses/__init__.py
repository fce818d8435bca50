"""Pure functions of tensors, by topic; names carry time: `q_tm1` before the step, `q_t` after it."""
