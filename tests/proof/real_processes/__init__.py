"""What `proof.kills` and `proof.power_cuts` share: what a child does, how it reports, and the ledger that judges it."""
