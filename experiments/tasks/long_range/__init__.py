"""Tasks over long sequences: ListOps, Pathfinder, images, documents."""
