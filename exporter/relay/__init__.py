"""From an engine's own page to our families: fetch, normalize, render."""
