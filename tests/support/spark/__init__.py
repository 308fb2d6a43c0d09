"""Spark for tests: real sessions and clusters, and stand-ins that do to our code what Spark does, without a JVM."""
