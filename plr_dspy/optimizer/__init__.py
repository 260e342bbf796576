"""`PLReorder`, and what all optimizers of an order share."""
