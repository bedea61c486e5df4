"""Tasks that come with the package."""
