"""Records of runs and sweeps on disk: their folders, events, journals, mirrors and checkpoints of trials."""
