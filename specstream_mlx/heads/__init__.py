"""Published draft heads: Medusa, Hydra, EAGLE. One file a kind, and ``files``, which reads them."""
