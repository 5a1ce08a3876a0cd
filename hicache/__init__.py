"""The shared index of stored pages, with leases, eviction and the admin command line."""
