"""What a model needs and what a GPU gives: figures with their sources, and the arithmetic on them. Pure."""
