"""The service for asyncio: the same names, awaited. docs/asyncio.md."""
