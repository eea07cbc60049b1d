"""Everything that depends on the machine: device, BLAS, weights in memory, measurements."""
