"""Act: decisions → halts, until they are confirmed or escalated."""
