"""What the router is made of: its words, views of caches, load, bindings, policies. Pure, with a given clock."""
