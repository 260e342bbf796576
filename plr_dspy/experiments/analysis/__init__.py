"""Tables and figures of the results."""
