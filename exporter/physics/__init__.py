"""What memory bandwidth and KV bytes say a number means, and the one thing to change."""
