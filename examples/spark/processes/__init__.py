"""The process that the pipeline starts and kills: a Spark job as an application would write it."""
