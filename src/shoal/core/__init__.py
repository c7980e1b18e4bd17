"""Parameter layouts, random streams, user errors, settings, text formats, worker processes and file writes."""
