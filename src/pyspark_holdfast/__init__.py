"""Makes every Spark session know the format ``holdfast``: Spark imports packages whose name begins with ``pyspark_``.

It registers the ``DefaultSource`` of the package, for all sessions of an application. Spark does this in a process of
its own, once, when a format that it does not know is first asked for. An error there would break every such format, so
there is no ``DefaultSource`` if pyspark or pyarrow cannot be imported.
"""

from contextlib import suppress

with suppress(ImportError):
    from holdfast.spark.data_source import HoldfastDataSource as DefaultSource

    __all__ = ["DefaultSource"]
