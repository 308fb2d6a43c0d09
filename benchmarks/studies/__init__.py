"""Prototypes that are measured and not delivered; each belongs to a record of a decision."""
