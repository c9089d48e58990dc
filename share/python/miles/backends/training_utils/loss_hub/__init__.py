"""Parts of losses."""
