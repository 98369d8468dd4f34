"""`obc.plan` and `obc.prune`: down to a cost, or as far as a promised quality allows."""
