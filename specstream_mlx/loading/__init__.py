"""From a path, a name or a repository to a model that decodes, or to a description of it."""
