"""The product's router, unmodified, on a virtual clock over a simple model of replicas, beside known policies."""
