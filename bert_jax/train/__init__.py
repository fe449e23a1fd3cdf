"""How it is learnt: losses, optimizer, schedule, the step, the loop, checkpoints."""
