"""A pipeline of Spark that is killed and resumed: ``python -m examples.spark``. The job is in ``processes``."""
