"""What the performance figures come from: `python -m bench NAME`, each a comparison within one run."""
