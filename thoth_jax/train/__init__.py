"""The trainer: one loop for the stages pretrain, sft and rl."""
