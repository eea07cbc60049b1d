"""Reports about a model or adapter directory, made without reading a weight."""
