"""Parts of an aligner: the state of one run, its facts for readers, and its logs."""
