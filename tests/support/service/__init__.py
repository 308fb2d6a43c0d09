"""Services for tests: their consumers, what worker processes import, typed objects, and the catalogue as rows."""
