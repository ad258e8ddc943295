"""Names of W&B that the drop-in lacks: they warn once and let training go on."""
