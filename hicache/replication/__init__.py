"""How several hicache-servers over one Redis agree: a stream of what each did, and one evictor."""
