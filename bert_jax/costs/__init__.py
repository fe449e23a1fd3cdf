"""What it costs: FLOPs, memory, time, and the plan of a run on devices that are not here."""
