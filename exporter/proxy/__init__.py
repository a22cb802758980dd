"""A pass-through in front of a server that has no metrics: it observes the traffic of its users and changes nothing."""
