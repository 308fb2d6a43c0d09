"""The command ``holdfast``."""
