"""Objects <-> bytes: one serializer for each content type, schemas and their versions, compression."""
