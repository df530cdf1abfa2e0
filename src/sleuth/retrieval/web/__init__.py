"""Search of the web, and pages fetched with care."""
